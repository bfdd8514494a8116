"""onnx bytes -> IR: the file, its graph's inputs and outputs, and what else it says. nodes.py reads
the nodes.

Initialisers are constants. Types beyond inputs and constants are not known yet: passes/infer.py
finds them.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, Optional, Union

import numpy as np

from q7x2_ep.errors import CorruptModel, FeedError, ModelError, ModelNotFound, UnsupportedOp
from q7x2_ep.files import map_file
from q7x2_ep.importer.nodes import NodeReader
from q7x2_ep.importer.opset import opset_versions
from q7x2_ep.importer.scope import Scope
from q7x2_ep.importer.tensors import Tensors
from q7x2_ep.importer.types import declared_outputs, input_type, optional_inputs, type_name
from q7x2_ep.importer.wire import parse
from q7x2_ep.ir.core import Graph, Type
from q7x2_ep.request import AS_IT_IS, Request

# A larger model file is mapped, a smaller one read: then it may be overwritten while it is in use.
MAP_BYTES = 1 << 26
KNOWN = {  # how other files begin that are taken for models, from which byte on, and what to do
    b"ORTM": (4, "it is in onnxruntime's own format: open the ONNX model that it was made of"),
    b"version https://git-lfs": (0, "it stands for a file in Git LFS: run git lfs pull"),
}
_NEWEST_IR = 14  # of the file format, as onnxruntime 1.32 has it
_NO_VERSION = 2**63 - 1  # what onnxruntime says of a model without one


def read(model: Union[str, os.PathLike, bytes, Any], request: Request = AS_IT_IS) -> Graph:
    """The graph of an ONNX model given as a path, as bytes, or as an onnx.ModelProto.

    Raises: ModelNotFound, ModelError with the source and the reason, UnsupportedOp with all
    unsupported ops.
    """
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        folder = os.path.dirname(os.path.abspath(path))
        graph = _from_bytes(_load(path), path, folder, request)
        graph.metadata["path"] = path
        return graph
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _from_bytes(bytes(model), "model bytes", None, request)
    if hasattr(model, "graph") and hasattr(model, "opset_import"):
        return _graph(model, "ModelProto", Tensors(request.folder, request.files), request)
    raise TypeError(f"a model is a path, bytes or an onnx.ModelProto, not {type(model).__name__}")


def _load(path: str) -> Any:
    try:
        size = os.path.getsize(path)
        if not os.path.isfile(path):  # a pipe, say, of which nobody knows the size
            with open(path, "rb") as file:
                return file.read()
        if size >= MAP_BYTES:
            return map_file(path)
        data = memoryview(np.empty(size, np.uint8))  # in huge pages, which bytes are not
        with open(path, "rb") as file:
            return data[: file.readinto(data)].toreadonly()
    except FileNotFoundError:
        raise ModelNotFound(
            f"Load model from {path} failed: there is no model file at {path}: File doesn't exist"
        ) from None
    except OSError as error:
        raise CorruptModel(
            f"Load model from {path} failed: cannot read it: {error.strerror}"
        ) from error


def parsed(model: Union[str, bytes]) -> Any:
    """The ModelProto at a path, or of bytes, as wire.py has it.

    Raises: ModelNotFound, CorruptModel, ModelError.
    """
    is_path = isinstance(model, str)
    return _parsed(_load(model), model) if is_path else _parsed(model, "model bytes")


def _parsed(data: Any, source: str) -> Any:
    if not data:
        raise ModelError(f"{source} is empty: No graph was found in the protobuf.")
    try:
        return parse(data)
    except ValueError as error:
        known = (text for start, (at, text) in KNOWN.items() if data[at : at + len(start)] == start)
        raise CorruptModel(
            f"Protobuf parsing failed: {source} is not an ONNX model, or is cut off: "
            f"{next(known, error)}"
        ) from error


def _from_bytes(data: Any, source: str, folder: Optional[str], request: Request) -> Graph:
    model = _parsed(data, source)
    where = request.folder if request.folder is not None else folder
    return _graph(model, source, Tensors(where, request.files), request)


def _graph(model: Any, source: str, tensors: Tensors, request: Request) -> Graph:
    """The graph of a parsed model."""
    graph = Graph(name=model.graph.name)
    reader = NodeReader(model, graph, tensors, request)
    try:
        _read_model(reader, model, request)
    except (ModelNotFound, FeedError, MemoryError):
        raise
    except ModelError as error:
        raise type(error)(f"{source}: {error.message}") from error
    except Exception as error:  # broken bytes can break any assumption: names that are no text
        raise ModelError(f"{source} is not a valid ONNX model: {error!r}") from error
    if reader.unsupported:
        raise UnsupportedOp(f"{source}: {_unsupported_text(reader.unsupported)}")
    return graph


def _read_model(reader: NodeReader, model: Any, request: Request) -> None:
    if model.ir_version > _NEWEST_IR:
        raise ModelError(
            f"Unsupported model IR version: {model.ir_version}, max supported IR version: "
            f"{_NEWEST_IR}: save the model with that, or an older one"
        )
    graph, versions = reader.graph, opset_versions(model.opset_import)
    if not versions:
        raise ModelError("not an ONNX model: it names no operator set: Missing opset in the model")
    if not model.graph.output:
        raise ModelError("the model has no graph outputs: a run would give nothing")
    scope = Scope({}, {}, versions, "", ())
    graph.opset = versions.get("", 0)
    reader.read_initializers(model.graph, scope)
    overridable = _read_inputs(reader, model.graph, scope, request)
    reader.read_nodes(model.graph.node, scope)
    for output in model.graph.output:
        graph.outputs.append(reader.values.value(scope, output.name, "the graph's outputs"))
        graph.output_names.append(output.name)
    for name in request.outputs:
        if scope.values.get(name) is None:
            raise FeedError(
                f"Invalid output name: {name}: the model has no value of this name; its "
                f"outputs are {[output.name for output in model.graph.output]}"
            )
        graph.outputs.append(scope.values[name])
        graph.output_names.append(name)
    graph.external_weights = reader.tensors.has_external()
    graph.metadata = {
        "path": None,
        "files": reader.tensors.files(request.files),
        "producer_name": model.producer_name,
        "graph_name": model.graph.name,
        "graph_description": model.graph.doc_string,
        "description": model.doc_string,
        "domain": model.domain,
        "version": model.model_version if model.HasField("model_version") else _NO_VERSION,
        "custom_metadata_map": {entry.key: entry.value for entry in model.metadata_props},
        "overridable": overridable,
        "types": {
            item.name: type_name(item.type) for item in (*model.graph.input, *model.graph.output)
        },
        "declared": declared_outputs(model.graph),
        "optional": optional_inputs(model.graph),
    }


def _read_inputs(reader: NodeReader, graph: Any, scope: Scope, request: Request) -> dict[str, Type]:
    """Adds the graph's inputs; returns those that an initializer fixes.

    Raises: ModelError for two of one name.
    """
    overridable: dict[str, Type] = {}
    names = Counter(item.name for item in graph.input)
    for item in graph.input:
        if names[item.name] > 1:
            raise ModelError(f"{names[item.name]} inputs are called {item.name!r}")
        type = input_type(item, request)
        if item.name in scope.values:
            overridable[item.name] = type
            continue
        value = reader.values.define(scope, item.name)
        value.set_type(type)
        reader.graph.inputs.append(value)
    return overridable


def _unsupported_text(found: list[tuple[str, str]]) -> str:
    counts = Counter(op for op, _ in found)
    lines = []
    for op, count in sorted(counts.items()):
        names = [name for each, name in found if each == op]
        more = f", and {count - 8} more" if count > 8 else ""
        lines.append(f"{op} ({count} node{'s' * (count > 1)}: {', '.join(names[:8])}{more})")
    text = f"{len(counts)} unsupported op{'s' * (len(counts) > 1)}: {'; '.join(lines)}"
    if any(op.startswith("com.microsoft.nchwc::") for op in counts):
        text += (
            "; onnxruntime saved this model for the CPU that it ran on, with weights in blocks of "
            "a size that the file does not tell: save it at ORT_ENABLE_EXTENDED or below"
        )
    return text
