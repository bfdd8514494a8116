"""Which ops run, in which dtypes, natively or on the host: found out by planning one-node models.

The models are the node cases of onnx's backend suite, which the onnx package carries: each is
planned in every dtype that the op's first input may have, with the other inputs as constants and
as inputs. An op of which the suite has no case is asked for its catalogue entry alone.
"""

from __future__ import annotations

import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from q7x2_ep import dtypes, fuse, importer, knobs, ops, passes
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.importer.contrib import CONTRIB
from q7x2_ep.ops.common import has_native_form
from q7x2_ep.plan.partition import partition
from q7x2_ep.plan.parts import HostPhase
from q7x2_ep.progress import track

HOW = ("native", "host", "neither")
WIDTH = 100
SAMPLES = 2  # cases of an op that are tried at most


class Row(NamedTuple):
    """One op. versions: all that models may ask for. The others: dtypes of the first input."""

    domain: str
    op: str
    versions: tuple[int, ...]
    native: tuple[str, ...]
    host: tuple[str, ...]
    neither: tuple[str, ...]


def rows(only: str = "") -> list[Row]:
    """The table, by domain and name. only: a regular expression over domain::name.

    All of it takes half a minute: some thousand models are planned.

    Raises: BackendError where the library cannot be loaded, BindingError for a knob that cannot be
    read.
    """
    import onnx

    for name in knobs.KNOBS:  # what is wrong with these is not what no op can run
        knobs.get(name)
    load()
    newest: dict[tuple[str, str], Any] = {}
    versions: dict[tuple[str, str], list[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        key = (schema.domain, schema.name)
        versions.setdefault(key, []).append(schema.since_version)
        if key not in newest or schema.since_version > newest[key].since_version:
            newest[key] = schema
    samples = _samples()
    found = []
    standard = [key for key in sorted(newest) if re.search(only, _name(*key))]
    for domain, op in track(standard, "ops"):
        schema, numbers = newest[domain, op], tuple(sorted(versions[domain, op]))
        if schema.deprecated:
            numbers = tuple(number for number in numbers if number != schema.since_version)
        found.append(_row(schema, numbers, samples.get((domain, op), ())))
    contrib = {name for name in (*ops.entries(), *CONTRIB) if name.startswith("com.microsoft::")}
    for name in sorted(name for name in contrib if re.search(only, name)):
        entry = ops.find(name)
        is_native = entry is None or has_native_form(entry)
        kinds = {how: ("any",) if how == HOW[not is_native] else () for how in HOW}
        found.append(Row("com.microsoft", name.partition("::")[2], (1,), **kinds))
    return found


def _samples() -> dict[tuple[str, str], list[tuple[Any, Any]]]:
    """Models of one node and their inputs, by the domain and name of the op."""
    with warnings.catch_warnings():  # cases divide by zero and overflow on purpose
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        cases = load_model_tests(kind="node")
    found: dict[tuple[str, str], list[tuple[Any, Any]]] = {}
    for case in cases:
        nodes = case.model.graph.node
        if len(nodes) == 1 and case.data_sets:
            known = found.setdefault((nodes[0].domain, nodes[0].op_type), [])
            if all(_form(nodes[0]) != _form(model.graph.node[0]) for model, _ in known):
                known.append((case.model, [_array(item) for item in case.data_sets[0][0]]))
    return found


def _array(item: Any) -> Any:
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(item) if isinstance(item, TensorProto) else item


def _form(node: Any) -> tuple:
    return tuple(map(bool, node.input)), tuple(sorted(attr.name for attr in node.attribute))


def _row(schema: Any, versions: tuple[int, ...], samples: Sequence[tuple[Any, Any]]) -> Row:
    variables = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    first = schema.inputs[0].type_str if schema.inputs else ""
    kinds = [kind for kind in dtypes.DTYPES if dtypes.type_string(kind) in variables.get(first, ())]
    found: dict[str, list[str]] = {how: [] for how in HOW}
    if not samples:
        found[_by_entry(schema, versions[-1])].append("any")
    elif not kinds:
        found[_best(samples[:SAMPLES])].append("any")
    for kind in kinds if samples else ():
        variants = (_in_dtype(*sample, schema.inputs, kind) for sample in samples[:SAMPLES])
        found[_best(variants)].append(dtypes.DTYPES[kind].onnx)
    return Row(schema.domain, schema.name, versions, *map(tuple, found.values()))


def _in_dtype(model: Any, inputs: Sequence[Any], formals: Any, kind: int) -> tuple[Any, list]:
    """The sample with all operands of the first type variable in a dtype."""
    import onnx

    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    arrays, dtype = list(inputs), np.dtype(dtypes.DTYPES[kind].numpy)
    first = formals[0].type_str
    node = model.graph.node[0]
    last = len(formals) - 1  # which may be variadic
    bound = {name for i, name in enumerate(node.input) if formals[min(i, last)].type_str == first}
    for i, item in enumerate(changed.graph.input):
        if item.name in bound and item.type.HasField("tensor_type"):
            item.type.tensor_type.elem_type = kind
            arrays[i] = _converted(np.asarray(arrays[i]), dtype)
    for item in changed.graph.output:  # what it says of types is of the old dtype
        item.ClearField("type")
    return changed, arrays


def _converted(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if array.dtype.kind in "OU":
        return array if dtype.kind == "O" else np.zeros(array.shape, dtype)
    with np.errstate(invalid="ignore"):
        return (array.astype(str) if dtype.kind == "O" else array).astype(dtype)


def _best(samples: Iterable[tuple[Any, Sequence[Any]]]) -> str:
    """native where any of the models is, else host where any can be planned, else neither."""
    results = set()
    for model, inputs in samples:
        for constants in (inputs[1:], ()):
            results.add(_how(model, constants))
            if "native" in results:
                return "native"
    return "host" if "host" in results else "neither"


def _how(model: Any, constants: Sequence[Any]) -> str:
    """How a model runs whose last inputs are constants."""
    import onnx

    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    names = [item.name for item in model.graph.input][len(model.graph.input) - len(constants) :]
    try:
        for name, array in zip(names, constants):
            fixed.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        graph = importer.read(fixed)
        passes.run_all(graph)
        fuse.fuse(graph)
        phases = partition(graph, load().target)
    except Exception:  # a dtype that the op refuses, or a defect: it does not run
        return "neither"
    return (
        "host"
        if any(isinstance(phase, HostPhase) and phase.within is None for phase in phases)
        else "native"
    )


def _name(domain: str, op: str) -> str:
    return f"{domain}::{op}" if domain else op


def _by_entry(schema: Any, version: int) -> str:
    from onnx.reference.ops import load_op

    name = _name(schema.domain, schema.name)
    if ops.find(name) is not None:
        return "native" if has_native_form(ops.find(name)) else "host"
    try:
        load_op(schema.domain, schema.name, version)
    except Exception:  # its kind differs between versions of onnx
        return "neither"
    return "host"


def table(found: Sequence[Row]) -> str:
    """Versions of each op, and where it runs: in all dtypes, or in which."""
    lines = [f"{'op':<39}{'versions':<30}runs"]
    for row in found:
        name = _name(row.domain, row.op)
        first, *more = textwrap.wrap(_where(row), WIDTH - 69)
        lines.append(f"{name:<39}{' '.join(map(str, row.versions)):<30}{first}")
        lines += [" " * 69 + part for part in more]
    counts = Counter(next(how for how in HOW if getattr(row, how)) for row in found)
    lines.append(
        f"{len(found)} ops: {counts['native']} native, {counts['host']} on the host, "
        f"{counts['neither']} not at all"
    )
    return "\n".join(lines)


def _where(row: Row) -> str:
    if not row.native or not row.host:
        return next(how for how in HOW if getattr(row, how))
    if len(row.host) <= len(row.native):
        return f"native; host: {_short(row.host)}"
    return f"native: {_short(row.native)}; others: host"


def _short(names: Sequence[str]) -> str:
    """f32 for float, u8 for uint8, and so on."""
    short = {"float": "f32", "double": "f64", "string": "str", "complex64": "c64"}
    plain = (short.get(name, name).replace("uint", "u").replace("complex", "c") for name in names)
    return " ".join(re.sub("^(b?f|i)[a-z]+", r"\1", name) for name in plain)
