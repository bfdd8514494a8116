"""What a session asks of a model beyond what is in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np


class Request(NamedTuple):
    """What a graph is read for. outputs: intermediate values that become outputs too. functions:
    Python functions that stand for ops, by domain and op type. live: inputs that have an
    initializer and are to be fed all the same. dims: sizes for symbolic dims of the inputs, by
    name; denotations: by denotation; negative ones leave the dim free. initializers: arrays in
    place of the model's; files: contents of files of external data, by location; folder: where
    the others are, None for the model's own. seed: of random ops without one of their own.
    regular: whether dims of one name have one size, inputs that are declared without dims none,
    and bounds of slices the sign that they mostly have (Slice.assumptions), which makes sizes
    simpler. rounds_rows: whether products by weights that are dequantised by blocks may round rows
    to int8.
    """

    outputs: Sequence[str] = ()
    functions: Mapping[tuple[str, str], Callable[..., Any]] = {}
    live: Collection[str] = ()
    dims: Mapping[str, int] = {}
    denotations: Mapping[str, int] = {}
    initializers: Mapping[str, np.ndarray] = {}
    files: Mapping[str, Any] = {}
    folder: Optional[str] = None
    seed: Optional[int] = None
    regular: bool = True
    rounds_rows: bool = False

    def fingerprint(self, fusion: bool) -> str:
        """A hash of all that changes what a model is compiled to, but for functions."""
        import hashlib  # 3 ms, for compiled models alone

        dims, denotations = sorted(self.dims.items()), sorted(self.denotations.items())
        asked = (list(self.outputs), sorted(self.live), dims, denotations, self.seed, self.regular)
        asked += (self.rounds_rows,)
        digest = hashlib.sha256(repr((asked, fusion)).encode())
        for name, array in sorted(self.initializers.items()):
            digest.update(f"{name}={array.dtype}{array.shape}".encode())
            digest.update(
                repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
            )
        for name, data in sorted(self.files.items()):
            digest.update(f"{name}={len(data)}".encode())
            digest.update(data)
        return digest.hexdigest()


AS_IT_IS = Request()
