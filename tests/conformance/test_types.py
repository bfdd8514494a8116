"""Models of the backend suite of one node, with inputs of other element types: those that the
schema of the op forbids are refused when the session is made, before a kernel takes elements for
others, and those that it allows are not.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator

import onnx
import pytest
from onnx import defs
from onnx.backend.test.loader import load_model_tests

import q7x2_ep
from q7x2_ep import dtypes

TRIED = tuple(
    getattr(dtypes, name) for name in ("FLOAT", "DOUBLE", "FLOAT16", "INT32", "INT64", "BOOL")
)
VERSIONS = "another version of the op takes it, and signatures are of all versions"
KINDS = "its kind holds more than the schema: numpy computes that on the host"
INLINED = "a function of the standard, whose nodes take any number"
ACCEPTED = {  # inputs, by op and place, and why some forbidden types of theirs are taken
    **dict.fromkeys(((f"Reduce{kind}", 0) for kind in ("Max", "Min")), VERSIONS),
    **dict.fromkeys(((f"Reduce{kind}", 0) for kind in ("LogSum", "LogSumExp")), VERSIONS),
    ("Erf", 0): VERSIONS,
    **dict.fromkeys((("QuantizeLinear", i) for i in range(3)), KINDS),
    ("DequantizeLinear", 1): KINDS,
    ("MaxPool", 0): KINDS,
    **dict.fromkeys((("ArrayFeatureExtractor", 0), ("Binarizer", 0), ("LabelEncoder", 0)), KINDS),
    ("TfIdfVectorizer", 0): KINDS,
    **dict.fromkeys(((f"{name}Window", 0) for name in ("Blackman", "Hamming", "Hann")), INLINED),
}
BOUND = {"BitCast", "Loop", "Scan"}  # by their attributes: to as many bits, and to those of a body


def _models() -> dict[str, list[onnx.ModelProto]]:
    """By op, those whose inputs are all fed."""
    found = defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    for graph, model in ((case.model.graph, case.model) for case in cases):
        fed = {"", *(item.name for item in graph.input)}
        if len(graph.node) == 1 and fed.issuperset(graph.node[0].input):
            found[graph.node[0].op_type].append(model)
    return found


MODELS = _models()


def _type(item: onnx.ValueInfoProto) -> str:
    """As schemas spell it; "" of what is no tensor."""
    code = item.type.tensor_type.elem_type
    return dtypes.type_string(code) if code else ""


def is_allowed(schema: defs.OpSchema, types: list[str]) -> bool:
    """Whether an op takes inputs of these types; those that are "" are not looked at."""
    bound: dict[str, str] = {}
    for i, type in enumerate(types):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        if not type:
            continue
        first = bound.setdefault(formal.type_str, type) if formal.is_homogeneous else type
        if type not in formal.types or type != first:
            return False
    return True


def schema_of(model: onnx.ModelProto) -> defs.OpSchema:
    (node,) = model.graph.node
    versions = {item.domain: item.version for item in model.opset_import}
    return defs.get_schema(node.op_type, versions[node.domain], node.domain)


def types_of(model: onnx.ModelProto) -> list[str]:
    given = {item.name: _type(item) for item in model.graph.input}
    return [given.get(name, "") for name in model.graph.node[0].input]


def changed(model: onnx.ModelProto, places: list[int], code: int) -> onnx.ModelProto:
    """The model with other elements in these inputs of its node, and outputs as they come."""
    mutant = onnx.ModelProto()
    mutant.CopyFrom(model)
    names = {model.graph.node[0].input[i] for i in places}
    for item in mutant.graph.input:
        if item.name in names:
            item.type.tensor_type.elem_type = code
    for item in mutant.graph.output:
        item.ClearField("type")
    return mutant


def forbidden(model: onnx.ModelProto) -> Iterator[tuple[int, onnx.ModelProto]]:
    """With one input changed, and its place."""
    schema, types = schema_of(model), types_of(model)
    assert is_allowed(schema, types)
    for i, code in ((i, code) for i, type in enumerate(types) if type for code in TRIED):
        if not is_allowed(schema, [*types[:i], dtypes.type_string(code), *types[i + 1 :]]):
            yield i, changed(model, [i], code)


def allowed(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """With all inputs of a type parameter changed."""
    schema, types = schema_of(model), types_of(model)
    last = len(schema.inputs) - 1
    parameters = [schema.inputs[min(i, last)].type_str for i in range(len(types))]
    for parameter in sorted(set(parameters)):
        places = [i for i, each in enumerate(parameters) if each == parameter and types[i]]
        for code in TRIED:
            new = [dtypes.type_string(code) if i in places else t for i, t in enumerate(types)]
            if new != types and is_allowed(schema, new):
                yield changed(model, places, code)


@pytest.mark.parametrize("op", MODELS)
def test_forbidden_types_are_refused(op: str) -> None:
    seen, accepted = set(), set()
    for model in MODELS[op]:
        for i, mutant in forbidden(model):
            if (i, *types_of(mutant)) in seen:
                continue
            seen.add((i, *types_of(mutant)))
            try:
                q7x2_ep.InferenceSession(mutant.SerializeToString())
            except q7x2_ep.ModelError:
                continue
            accepted.add((op, i))
    assert accepted == {key for key in ACCEPTED if key[0] == op}


@pytest.mark.parametrize("op", sorted(MODELS.keys() - BOUND))
def test_allowed_types_are_not_refused(op: str) -> None:
    seen = set()
    for model in MODELS[op]:
        for mutant in allowed(model):
            if tuple(types_of(mutant)) not in seen:
                seen.add(tuple(types_of(mutant)))
                q7x2_ep.InferenceSession(mutant.SerializeToString())
