"""Whether a node has as many inputs and outputs as the signature of its op asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from q7x2_ep.errors import ModelError


@cache
def _operands(signature: str) -> tuple[list[str], list[int], float]:
    """The names before the arrow, the places of those that must be there, and how many may be."""
    names = [name.strip() for name in signature.split("->")[0].split(",") if name.strip()]
    required = [i for i, name in enumerate(names) if not name.endswith(("?", "*"))]
    is_open = any(name.endswith("*") for name in names)
    return names, required, math.inf if is_open else len(names)


def check_count(inputs: list, signature: str, where: str) -> None:
    operands, required, most = _operands(signature)
    count = len(inputs)
    if count > most or any(i >= count or inputs[i] is None for i in required):
        raise ModelError(f"{where} takes ({', '.join(operands)}), was given {count} inputs")


@cache
def _results(signature: str) -> tuple[list[str], int]:
    """The names behind the arrow, and how many there must be."""
    names = [name.strip() for name in signature.split("->")[1].split(",")]
    return names, sum(not name.endswith(("?", "*")) for name in names)


def check_outputs(names: Sequence[str], signature: str, where: str) -> None:
    results, least = _results(signature)
    if len(names) < least:
        raise ModelError(f"{where} makes ({', '.join(results)}), was given {len(names)} names")
