"""What a session tells of its model: NodeArg, ModelMetadata, and where nodes are run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

from q7x2_ep.api.device import PROVIDER

if TYPE_CHECKING:
    from q7x2_ep.ir.core import Graph
    from q7x2_ep.ir.shape import Dim


class NodeArg:
    """One input or output. shape: ints for fixed dims, strings for symbolic ones, None for those
    without a name. type: like tensor(float).
    """

    def __init__(self, name: str, type: str, shape: list[Union[int, str, None]]):
        self._name, self._type, self._shape = name, type, shape

    @property
    def name(self) -> str:
        return self._name

    @property
    def type(self) -> str:
        return self._type

    @property
    def shape(self) -> list[Union[int, str, None]]:
        """A new list each time: what a caller does to it changes no other's."""
        return [*self._shape]

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"


class ModelMetadata:
    """What the model says of itself. known: what the importer read."""

    def __init__(self, known: Mapping[str, Any]):
        self.producer_name: str = known["producer_name"]
        self.graph_name: str = known["graph_name"]
        self.domain: str = known["domain"]
        self.description: str = known["description"]
        self.graph_description: str = known["graph_description"]
        self.version: int = known["version"]
        self.custom_metadata_map = known["custom_metadata_map"]

    @property
    def custom_metadata_map(self) -> dict[str, str]:
        """A new dict each time, as NodeArg.shape is a new list."""
        return {**self._custom_metadata_map}

    @custom_metadata_map.setter
    def custom_metadata_map(self, entries: Mapping[str, str]) -> None:
        self._custom_metadata_map = {**entries}


class OrtEpAssignedNode:
    """A node as it is run."""

    def __init__(self, name: str, domain: str, op_type: str):
        self.name, self.domain, self.op_type = name, domain, op_type


class OrtEpAssignedSubgraph:
    """The nodes that a provider runs."""

    def __init__(self, ep_name: str, nodes: list[OrtEpAssignedNode]):
        self.ep_name, self._nodes = ep_name, nodes

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        return self._nodes


def assigned(graph: Graph) -> list[OrtEpAssignedSubgraph]:
    """The nodes of a graph, all of which the CPU runs."""
    nodes = []
    for node in graph.nodes:
        domain, _, op_type = node.op.rpartition("::")
        nodes.append(OrtEpAssignedNode(node.name, domain, op_type))
    return [OrtEpAssignedSubgraph(PROVIDER, nodes)] if nodes else []


def node_arg(
    name: str,
    type: str,
    shape: Optional[Sequence[Dim]],
    declared: Optional[Sequence[Union[int, str, None]]] = None,
    names: Optional[Collection[str]] = None,
) -> NodeArg:
    """The description of a value. declared: what the model calls the dims of an output; names: what
    it calls those of inputs, which an output may have too.
    """
    dims: list[Union[int, str, None]] = []
    for axis, dim in enumerate(shape or ()):
        given = declared[axis] if declared and len(declared) == len(shape) else None
        known = str(dim) in names if names is not None else str(dim) != f"{name}_d{axis}"
        text = str(dim) if known and dim is not None else None  # or inference made the name up
        dims.append(dim if isinstance(dim, int) else given or text)
    return NodeArg(name, type, dims)


def symbolic(arguments: Sequence[NodeArg]) -> set[str]:
    """The names of their dims."""
    return {dim for argument in arguments for dim in argument.shape if isinstance(dim, str)}
