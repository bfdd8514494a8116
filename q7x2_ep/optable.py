"""Which ops run, in which dtypes, natively or on the host: found out by planning models of one node.

The models are the node cases of onnx's backend suite, which the onnx package carries: each is
planned in every dtype that the op's first input may have, with the other inputs as constants and
as inputs. An op of which the suite has no case is asked for its catalogue entry alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from q7x2_ep import dtypes, fuse, importer, ops, passes
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.importer.contrib import CONTRIB
from q7x2_ep.plan.partition import HostPhase, partition
from q7x2_ep.progress import track

SAMPLES = 3  # cases of an op that are tried at most
DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft")


class Row(NamedTuple):
    """One op. versions: that models may ask for. native, host, neither: dtypes of the first input."""

    domain: str
    op: str
    versions: tuple[int, ...]
    native: tuple[str, ...]
    host: tuple[str, ...]
    neither: tuple[str, ...]


def rows() -> list[Row]:
    """The table, by domain and name. Takes half a minute: some thousand models are planned."""
    import onnx

    newest: dict[tuple[str, str], Any] = {}
    versions: dict[tuple[str, str], list[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        key = (schema.domain, schema.name)
        versions.setdefault(key, []).append(schema.since_version)
        if key not in newest or schema.since_version > newest[key].since_version:
            newest[key] = schema
    samples = _samples()
    standard = sorted(newest, key=lambda key: (DOMAINS.index(key[0]), key[1]))
    found = []
    for domain, op in track(standard, "ops"):
        schema, numbers = newest[domain, op], tuple(sorted(versions[domain, op]))
        if schema.deprecated:
            numbers = tuple(number for number in numbers if number != schema.since_version)
        found.append(_row(schema, numbers, samples.get((domain, op), ())))
    contrib = {name for name in (*ops.OPS, *CONTRIB) if name.startswith("com.microsoft::")}
    for name in sorted(contrib):
        is_native = name in CONTRIB or not _runs_on_host(name)
        kinds = ("any",) if is_native else ()
        found.append(
            Row(
                "com.microsoft", name.partition("::")[2], (1,), kinds, () if kinds else ("any",), ()
            )
        )
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
                known.append((case.model, case.data_sets[0][0]))
    return found


def _form(node: Any) -> tuple:
    return tuple(map(bool, node.input)), tuple(sorted(attr.name for attr in node.attribute))


def _row(schema: Any, versions: tuple[int, ...], samples: Sequence[tuple[Any, Any]]) -> Row:
    variables = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    first = schema.inputs[0].type_str if schema.inputs else ""
    kinds = [kind for kind in dtypes.DTYPES if dtypes.type_string(kind) in variables.get(first, ())]
    found: dict[str, list[str]] = {"native": [], "host": [], "neither": []}
    if not samples:
        found["host" if _has_reference(schema, versions[-1]) else "neither"].append("any")
    elif not kinds:
        found[_best(samples[:SAMPLES])].append("any")
    for kind in kinds if samples else ():
        bound = {i for i, formal in enumerate(schema.inputs) if formal.type_str == first}
        variants = (_in_dtype(*sample, bound, kind) for sample in samples[:SAMPLES])
        found[_best(variants)].append(dtypes.DTYPES[kind].onnx)
    return Row(schema.domain, schema.name, versions, *map(tuple, found.values()))


def _in_dtype(model: Any, inputs: Sequence[Any], bound: set[int], kind: int) -> tuple[Any, list]:
    """The sample with all operands of the first type variable in a dtype."""
    import onnx

    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    arrays, dtype = list(inputs), np.dtype(dtypes.DTYPES[kind].numpy)
    place = {name: min(i, max(bound)) for i, name in enumerate(model.graph.node[0].input)}
    for i, item in enumerate(changed.graph.input):
        if place.get(item.name) in bound and item.type.HasField("tensor_type"):
            item.type.tensor_type.elem_type = kind
            arrays[i] = np.asarray(arrays[i]).astype(dtype)
    for item in changed.graph.output:  # what it says of types is of the old dtype
        item.ClearField("type")
    return changed, arrays


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
    return "host" if any(isinstance(phase, HostPhase) for phase in phases) else "native"


def _runs_on_host(name: str) -> bool:
    entry = ops.find(name)
    return not any(hasattr(entry, part) for part in ("lower", "view", "views", "decompose"))


def _has_reference(schema: Any, version: int) -> bool:
    """Whether the catalogue or onnx's evaluator has an implementation."""
    from onnx.reference.ops import load_op

    name = f"{schema.domain}::{schema.name}" if schema.domain else schema.name
    if ops.find(name) is not None:
        return True
    try:
        load_op(schema.domain, schema.name, version)
    except Exception:  # its kind differs between versions of onnx
        return False
    return True


def table(found: Sequence[Row]) -> str:
    """Two lines per op at most: versions and dtypes."""
    lines = [f"{'op':<28}{'versions':<26}runs"]
    for row in found:
        name = f"{row.domain}::{row.op}" if row.domain else row.op
        kinds = [(how, getattr(row, how)) for how in ("native", "host", "neither")]
        whole = [how for how, names in kinds if names]
        text = (
            whole[0] if len(whole) == 1 else "; ".join(f"{h}: {_short(n)}" for h, n in kinds if n)
        )
        numbers = " ".join(map(str, row.versions))
        lines.append(f"{name[-27:]:<28}{numbers:<26}{text}".rstrip())
    counts = {how: sum(bool(getattr(row, how)) for row in found) for how in ("native", "host")}
    counts["native in some dtype"] = counts.pop("native")
    counts["host only"] = sum(bool(row.host) and not row.native for row in found)
    counts["not at all"] = sum(not row.host and not row.native for row in found)
    del counts["host"]
    lines.append(f"{len(found)} ops: " + ", ".join(f"{n} {how}" for how, n in counts.items()))
    return "\n".join(lines)


SHORT = {"float": "f", "double": "f64", "string": "str", "bfloat16": "bf16"}


def _short(names: Sequence[str]) -> str:
    return " ".join(
        SHORT.get(n, n.replace("uint", "u").replace("int", "i").replace("float", "f"))
        for n in names
    )
