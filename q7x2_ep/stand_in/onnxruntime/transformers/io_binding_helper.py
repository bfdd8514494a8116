"""TypeHelper: from the types of inputs and outputs to those of numpy, torch and onnx."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from q7x2_ep.api import InferenceSession, NodeArg
from q7x2_ep.dtypes import BFLOAT16, DTYPES, DType

_BY_TYPE = {f"tensor({row.onnx})": row for row in DTYPES.values()}


class TypeHelper:
    """Types by the names that NodeArg.type has, like tensor(float).

    Raises: ValueError for a name that is not known, or that has no counterpart.
    """

    @staticmethod
    def get_input_type(ort_session: InferenceSession, name: str) -> str:
        return _type("input", ort_session.get_inputs(), name)

    @staticmethod
    def get_output_type(ort_session: InferenceSession, name: str) -> str:
        return _type("output", ort_session.get_outputs(), name)

    @staticmethod
    def ort_type_to_numpy_type(ort_type: str) -> type:
        row = _row(ort_type)
        if row.code >= BFLOAT16 or row.kind == "s":
            raise ValueError(f"{ort_type} not found in map")
        return bool if row.kind == "b" else np.dtype(row.name).type

    @staticmethod
    def ort_type_to_torch_type(ort_type: str) -> Any:
        import torch

        found = getattr(torch, _row(ort_type).name, None)
        if found is None:
            raise ValueError(f"{ort_type} not found in map")
        return found

    @staticmethod
    def ort_type_to_onnx_type(ort_type: str) -> int:
        return _row(ort_type).code

    @staticmethod
    def get_io_numpy_type_map(ort_session: InferenceSession) -> dict[str, type]:
        return _each(ort_session, TypeHelper.ort_type_to_numpy_type)

    @staticmethod
    def get_io_onnx_type_map(ort_session: InferenceSession) -> dict[str, int]:
        return _each(ort_session, TypeHelper.ort_type_to_onnx_type)


def _row(ort_type: str) -> DType:
    if ort_type not in _BY_TYPE:
        raise ValueError(f"{ort_type} not found in map")
    return _BY_TYPE[ort_type]


def _type(what: str, found: list[NodeArg], name: str) -> str:
    for each in found:
        if each.name == name:
            return each.type
    raise ValueError(f"{what} name {name} not found")


def _each(session: InferenceSession, convert: Callable[[str], Any]) -> dict[str, Any]:
    found = (*session.get_inputs(), *session.get_outputs())
    return {each.name: convert(each.type) for each in found}
