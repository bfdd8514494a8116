"""ModelCompiler: a model rewritten ahead of time, as a file, bytes or a stream.

onnxruntime's compiler wraps what a provider compiles in EPContext nodes; the CPU needs none, so
that what is written is the optimised model, which any engine opens.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Optional, Union

from q7x2_ep.api.enums import GraphOptimizationLevel, OrtEnum
from q7x2_ep.api.options import SessionOptions, asked
from q7x2_ep.api.value import OrtValue
from q7x2_ep.errors import BindingError, InvalidArgument, ModelError, cannot_write
from q7x2_ep.files import replacing

__all__ = [
    "ModelCompiler",
    "OrtCompileApiFlags",
    "OrtEpContextData",
    "OrtEpContextDataBuffer",
    "OrtExternalInitializerInfo",
]
_COMPILED = ".q7"  # what is written is told by the name here, and nowhere else
Path = Union[str, "os.PathLike[str]"]


class OrtCompileApiFlags(OrtEnum):
    """What ModelCompiler refuses; flags are or-ed."""

    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2


class OrtExternalInitializerInfo:
    """Where an initializer's bytes are, in a file beside the model."""

    def __init__(self, filepath: str, file_offset: int, byte_size: int):
        self.filepath, self.file_offset, self.byte_size = filepath, file_offset, byte_size


class OrtEpContextData:
    """Data that a provider's compiler hands over. The CPU's has none, so that no session makes
    one.
    """

    def __init__(self, data: bytes = b""):
        self._data = data

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int = 0, length: Optional[int] = None) -> bytes:
        """Bytes from offset, to the end or as many as length."""
        return self._data[offset : None if length is None else offset + length]


class OrtEpContextDataBuffer:
    """Where data for a provider's compiled nodes is written, in one allocation."""

    def __init__(self, max_size: int = 0):
        self.max_size, self._data = max_size, bytearray()
        self.is_allocated = False

    @property
    def size(self) -> int:
        return len(self._data)

    def allocate(self, size: int) -> None:
        """Raises: BindingError for more than max_size."""
        if size > self.max_size:
            raise BindingError(f"[EPContext] expected at most {self.max_size} bytes, given {size}")
        self._data, self.is_allocated = bytearray(size), True

    def write(self, data: Any, offset: int = 0) -> None:
        """Raises: BindingError beyond what was allocated."""
        end = offset + len(data)
        if end > self.size:
            raise BindingError(f"[EPContext] bytes {offset} to {end} are outside of {self.size}")
        self._data[offset:end] = data


Location = Callable[
    [str, OrtValue, Optional[OrtExternalInitializerInfo]], Optional[OrtExternalInitializerInfo]
]


class ModelCompiler:
    """Rewrites a model ahead of time; into a file of a name that ends in .q7, compiles it.

    sess_options: sizes of dims, initializers and whatever else changes the model are fixed in what
    is written. graph_optimization_level: in their place; the default leaves the graph as it is.
    external_initializers_file_path: a file for initializers of external_initializers_size_threshold
    bytes and more. get_initializer_location_func: asked for each initializer whether the caller has
    put it into a file. flags: see OrtCompileApiFlags.

    Raises: TypeError, ValueError and BindingError for arguments that do not fit.
    """

    def __init__(
        self,
        sess_options: SessionOptions,
        input_model_path_or_bytes: Union[Path, bytes],
        embed_compiled_data_into_model: bool = False,
        external_initializers_file_path: Optional[Path] = None,
        external_initializers_size_threshold: int = 1024,
        flags: int = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        get_initializer_location_func: Optional[Location] = None,
    ):
        if not isinstance(sess_options, SessionOptions):
            raise TypeError(f"sess_options must be a SessionOptions, given {sess_options!r}")
        if not isinstance(input_model_path_or_bytes, (str, os.PathLike, bytes)):
            raise TypeError(f"Unable to load from type '{type(input_model_path_or_bytes)}'")
        if not input_model_path_or_bytes:
            raise ValueError("the input model is empty: expected a path or the bytes of a model")
        if external_initializers_file_path and get_initializer_location_func:
            raise ValueError(
                "Cannot initialize ModelCompiler with both `external_initializers_file_path` and "
                "`get_initializer_location_func`"
            )
        if flags & OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED:
            raise BindingError(
                "[compile] ERROR_IF_NO_NODES_COMPILED: the CPU needs no EPContext nodes, so that "
                "none are ever written"
            )
        self._model, self._options = input_model_path_or_bytes, sess_options
        self._weights = os.fspath(external_initializers_file_path or "")
        self._threshold, self._flags = external_initializers_size_threshold, flags
        self._level, self._location = graph_optimization_level, get_initializer_location_func

    def compile_to_file(self, output_model_path: Optional[Path] = None) -> None:
        """Writes a file: by default beside the model, with _ctx before its suffix.

        Raises: BindingError where it exists already, and flags forbid that; ModelError where it
        cannot be written.
        """
        if output_model_path is None:
            if isinstance(self._model, bytes):
                raise BindingError("[compile] expected an output path for a model given as bytes")
            output_model_path = os.path.splitext(self._model)[0] + "_ctx.onnx"
        if self._flags & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS and os.path.exists(
            output_model_path
        ):
            raise BindingError(f"[compile] {output_model_path} exists already")
        if os.fspath(output_model_path).endswith(_COMPILED):
            from q7x2_ep.compile import compile

            compile(self._model, output_model_path, self._options)
            return
        folder = os.path.dirname(os.path.abspath(output_model_path))
        with _written(os.fspath(output_model_path)) as file:
            file.write(self._compile(folder))

    def compile_to_bytes(self) -> bytes:
        """The model.

        Raises: ModelError where the file of its initializers cannot be written.
        """
        return self._compile(os.getcwd())

    def compile_to_stream(self, write_function: Callable[[bytes], Any]) -> None:
        """Hands the model to write_function.

        Raises: BindingError for what it raises, and as compile_to_bytes.
        """
        data = self.compile_to_bytes()
        try:
            write_function(data)
        except Exception as error:
            raise BindingError(f"[compile] the write function failed: {error}") from error

    def set_ep_context_data_write_func(
        self, write_func: Callable[[str, OrtEpContextData], None]
    ) -> None:
        """Accepted, and not called: no EPContext nodes are written."""

    def clear_ep_context_data_write_func(self) -> None:
        """Nothing to clear, see set_ep_context_data_write_func."""

    def set_ep_context_binary_information(self, output_directory: Path, model_name: str) -> None:
        """Checked, and not used: no EPContext nodes are written.

        Raises: InvalidArgument where one of them is empty.
        """
        if not os.fspath(output_directory) or not model_name:
            raise InvalidArgument(
                "output_dir or model_name is empty: given "
                f"{os.fspath(output_directory)!r} and {model_name!r}"
            )

    def _compile(self, folder: str) -> bytes:
        """The model's bytes; its external data is written to, or found from, the folder."""
        from q7x2_ep import fuse, importer, passes
        from q7x2_ep.importer.writer import write
        from q7x2_ep.passes import infer

        graph = importer.read(self._model, asked(self._options))
        if self._level > GraphOptimizationLevel.ORT_DISABLE_ALL:
            passes.run_all(graph)
        else:
            infer.run(graph)
        if self._level >= GraphOptimizationLevel.ORT_ENABLE_EXTENDED:
            fuse.fuse(graph)
            passes.run_all(graph)
        model = write(graph)
        if self._location:
            for tensor in model.graph.initializer:
                self._ask(self._location, tensor)
        if not self._weights:
            return model.SerializeToString()
        path = os.path.join(folder, self._weights)
        with _written(path) as file:
            for tensor in model.graph.initializer:
                if len(tensor.raw_data) >= self._threshold:
                    offset = file.tell()
                    file.write(tensor.raw_data)
                    _refer(tensor, os.path.relpath(path, folder), offset, len(tensor.raw_data))
            return model.SerializeToString()

    def _ask(self, location: Location, tensor: Any) -> None:
        from onnx import numpy_helper

        place = location(tensor.name, OrtValue._of(numpy_helper.to_array(tensor)), None)
        if place is not None:
            _refer(tensor, place.filepath, place.file_offset, place.byte_size)


@contextlib.contextmanager
def _written(path: str) -> Iterator[Any]:
    """A file that takes its place once it is complete.

    Raises: ModelError where it cannot be written.
    """
    try:
        with replacing(path) as file:
            yield file
    except OSError as error:
        raise ModelError(cannot_write(path, error)) from error


def _refer(tensor: Any, location: str, offset: int, length: int) -> None:
    """Makes the tensor one whose bytes lie in a file."""
    tensor.ClearField("raw_data")
    tensor.data_location = tensor.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
