"""Every version of every standard op is rewritten to something that the newest one allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from q7x2_ep.importer.opset import Draft, Maker, modernise

NEWEST = onnx.defs.onnx_opset_version()
SCHEMAS = [
    schema
    for schema in onnx.defs.get_all_schemas_with_history()
    if not schema.domain and not schema.deprecated
]
OWN = {"batched"}  # of Scan, for the batches of opset 8
NEEDED = {"shape"}  # of Reshape, optional in the schema of opset 1
VALUES = {"INT": 1, "FLOAT": 1.0, "STRING": "FLOAT", "INTS": (1,), "FLOATS": (1.0,)}
IDS = [f"{schema.name}-{schema.since_version}" for schema in SCHEMAS]


@pytest.mark.parametrize("schema", SCHEMAS, ids=IDS)
def test_an_old_node_becomes_nodes_of_the_newest_form(schema):
    given = attributes(schema)
    inputs = [f"x{i}" for i, formal in enumerate(schema.inputs) if formal.option.name != "Variadic"]
    for attrs in (given, needed(schema, given)):
        made = [
            Draft(schema.name, inputs[:], [f"y{i}" for i in range(len(schema.outputs))], attrs, "n")
        ]
        for draft in modernise(*made, schema.since_version, maker()):
            check(draft)


def attributes(schema: Any) -> dict:
    """Every attribute with its default, or some value."""
    found = {}
    for key, attr in schema.attributes.items():
        kind = attr.type.name
        if attr.default_value.name:
            found[key] = onnx.helper.get_attribute_value(attr.default_value)
        elif kind in VALUES:
            found[key] = VALUES[kind]
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in found.items()}


def needed(schema: Any, given: dict) -> dict:
    return {k: v for k, v in given.items() if schema.attributes[k].required or k in NEEDED}


def maker() -> Maker:
    names = iter(range(1000))
    return Maker(lambda array, hint: f"{hint}{next(names)}", lambda hint: f"{hint}{next(names)}")


def check(draft: Draft) -> None:
    newest = onnx.defs.get_schema(draft.op, NEWEST)
    assert not newest.deprecated
    assert draft.attrs.keys() - OWN <= newest.attributes.keys()
    for key, value in draft.attrs.items():
        kind = newest.attributes[key].type.name if key not in OWN else None
        wanted = {"INT": int, "FLOAT": (int, float), "STRING": str, "TENSOR": np.ndarray}.get(kind)
        assert wanted is None or isinstance(value, wanted), (key, value)
    assert len(draft.inputs) <= newest.max_input
    assert len(draft.inputs) >= newest.min_input or newest.inputs[-1].option.name == "Variadic"
    assert len(draft.outputs) <= newest.max_output


def test_softmax_flattens_what_is_empty():
    """Its result gets the dims of x back, a 0 among them as it stands."""
    drafts = modernise(Draft("Softmax", ["x"], ["y"], {"axis": 2}, "n"), 7, maker())
    assert drafts[-1].op == "Reshape"
    assert drafts[-1].attrs["allowzero"]
