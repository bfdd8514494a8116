"""What the signature of an op says: its operands and results, and the dtypes that they may have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Callable, NamedTuple, Optional, Union

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, where_is


class Formal(NamedTuple):
    """An operand or result of an op. mark: `?` optional, `*` variadic. type: operands of one have
    one dtype, "" is of no type. allowed: the dtypes that it may have, None for any.
    """

    name: str
    mark: str = ""
    type: str = ""
    allowed: Optional[frozenset[int]] = None

    def __str__(self) -> str:
        return self.name + self.mark


class Signature(NamedTuple):
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]

    def input(self, i: int) -> Formal:
        """That of input i; the last one goes on."""
        return self.inputs[min(i, len(self.inputs) - 1)]


Spelled = Union[str, Signature]  # as an entry has it: one made from a schema is not spelled


def _those(fit: Callable[[dtypes.DType], bool]) -> frozenset[int]:
    return frozenset(row.code for row in dtypes.DTYPES.values() if fit(row))


KINDS: dict[str, Optional[frozenset[int]]] = {  # see ops/__init__.py
    "T": None,
    "N": _those(lambda row: row.kind in "fiu"),
    "Q": _those(lambda row: row.kind in "fiu" and row.size <= (1 if row.kind == "f" else 4)),
    "F": _those(lambda row: row.kind == "f"),
    "I": _those(lambda row: row.kind in "iu"),
    "B": _those(lambda row: row.kind in "fiu" and row.size == 1 and not row.bits),
    "index": frozenset({dtypes.INT32, dtypes.INT64}),
    **{row.name: frozenset({row.code}) for row in dtypes.DTYPES.values()},
}
SPELLED = {
    KINDS["N"]: "numbers",
    KINDS["F"]: "floats",
    KINDS["I"]: "integers",
    KINDS["B"]: "numbers of 8 bits",
    KINDS["Q"]: "quantised numbers",
}


@cache
def parse(signature: Spelled) -> Signature:
    """Raises: KeyError for a type that is not among KINDS."""
    if isinstance(signature, Signature):
        return signature
    inputs, outputs = (
        tuple(_formal(text) for text in side.split(",") if text.strip())
        for side in signature.split("->")
    )
    return Signature(inputs, outputs)


def _formal(text: str) -> Formal:
    name, type = (part.strip() for part in f"{text}:".split(":")[:2])
    mark = name[-1] if name.endswith(("?", "*")) else ""
    kind = type if type in KINDS else type.rstrip("0123456789")
    return Formal(name.rstrip("?*"), mark, type, KINDS[kind] if type else None)


@cache
def _counts(signature: Spelled, side: str) -> tuple[tuple[int, ...], float]:
    """Which `inputs` an op needs, and how many it takes at most; or its `outputs`."""
    formals = getattr(parse(signature), side)
    most = math.inf if any(formal.mark == "*" for formal in formals) else len(formals)
    return tuple(i for i, formal in enumerate(formals) if not formal.mark), most


def check_count(inputs: list, signature: Spelled, where: str) -> None:
    """Raises: ModelError for too many inputs, or one that is missing."""
    needed, most = _counts(signature, "inputs")
    count = len(inputs)
    if count > most or [i for i in needed if i >= count or inputs[i] is None]:
        takes = ", ".join(map(str, parse(signature).inputs))
        raise ModelError(f"{where} takes ({takes}), was given {count} inputs")


def check_outputs(names: Sequence[str], signature: Spelled, where: str) -> None:
    """Raises: ModelError for too few outputs, or more than there are."""
    needed, most = _counts(signature, "outputs")
    if not len(needed) <= len(names) <= most:
        makes = ", ".join(map(str, parse(signature).outputs))
        raise ModelError(f"{where} makes ({makes}), was given {len(names)} names")


def check_types(node: Node, signature: Spelled) -> None:
    """Raises: ModelError for inputs of dtypes, as far as known, that the op does not take."""
    wrong = _misfit(signature, tuple([0 if v is None else v.dtype for v in node.inputs]))
    if wrong is None:
        return
    formals = [parse(signature).input(i) for i in wrong]
    names = " and ".join(dict.fromkeys(formal.name for formal in formals))
    operands = [node.inputs[i] for i in wrong]
    given = " and ".join(x.name for x in operands)
    types = " and ".join(dtypes.type_string(x.dtype) for x in operands)
    kind = node.op.rpartition("::")[2].partition("@")[0]
    if len(wrong) > 1:  # the first words are onnxruntime's, which clients look for
        text = (
            f"Type parameter ({formals[0].type}) of Optype ({kind}) bound to different types "
            f"({types}): expected {names} of one type, given {given}"
        )
    else:
        allowed = formals[0].allowed or frozenset()
        rows = [dtypes.DTYPES[code].onnx for code in sorted(allowed)]
        expected = SPELLED.get(allowed) or " or ".join(rows) or "a tensor"
        text = (
            f"Type '{types}' of input parameter ({given}) of operator ({kind}) in node "
            f"({node.name}) is invalid: expected {expected} as {names}"
        )
    raise ModelError(f"{where_is(node)} Type Error: {text}")


@lru_cache(maxsize=4096)
def _misfit(signature: Spelled, given: tuple[int, ...]) -> Optional[tuple[int, ...]]:
    """The place of an input of a dtype that is not allowed, the places of two that should have one
    dtype, or None where all inputs fit.
    """
    first: dict[str, int] = {}
    for i, dtype in enumerate(given):
        formal = parse(signature).input(i)
        if dtype == dtypes.NO_TENSOR and formal.type:
            return (i,)
        if dtype <= 0:
            continue
        if formal.allowed is not None and dtype not in formal.allowed:
            return (i,)
        if formal.type and given[first.setdefault(formal.type, i)] != dtype:
            return first[formal.type], i
    return None
