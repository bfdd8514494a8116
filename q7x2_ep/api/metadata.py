"""What a session tells of its model: NodeArg, ModelMetadata, and where nodes are run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Optional, Union

from q7x2_ep.api.device import PROVIDER

if TYPE_CHECKING:
    from q7x2_ep.ir.core import Graph
    from q7x2_ep.ir.shape import Dim


@dataclass(frozen=True)
class NodeArg:
    """One input or output. shape: ints for fixed dims, strings for symbolic ones, None for those
    without a name. type: like tensor(float).
    """

    name: str
    type: str
    shape: list[Union[int, str, None]]


@dataclass(frozen=True)
class ModelMetadata:
    """What the model says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


@dataclass(frozen=True)
class OrtEpAssignedNode:
    """A node as it is run."""

    name: str
    domain: str
    op_type: str


@dataclass(frozen=True)
class OrtEpAssignedSubgraph:
    """The nodes that a provider runs."""

    ep_name: str
    _nodes: list[OrtEpAssignedNode]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        return self._nodes


def model_metadata(known: Mapping[str, Any]) -> ModelMetadata:
    """From what the importer read."""
    return ModelMetadata(**{each.name: known[each.name] for each in fields(ModelMetadata)})


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
) -> NodeArg:
    """The description of a value. declared: what the model calls the dims of an output."""
    dims: list[Union[int, str, None]] = []
    for axis, dim in enumerate(shape or ()):
        given = declared[axis] if declared and len(declared) == len(shape) else None
        unnamed = dim is None or str(dim) == f"{name}_d{axis}"  # the name that the reader makes up
        dims.append(dim if isinstance(dim, int) else given or (None if unnamed else str(dim)))
    return NodeArg(name, type, dims)
