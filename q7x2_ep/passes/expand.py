"""Ops that are only a short form: a node without steps of its own gives way to its meaning.

Attention of ONNX and of com.microsoft, say, becomes views and q7::Attention. It needs the types of
the inputs, which is why the importer cannot do it.
"""

from __future__ import annotations

from q7x2_ep.errors import ModelError, Q7Error
from q7x2_ep.ir.core import Graph, Node, misfit, where_is
from q7x2_ep.ops import find
from q7x2_ep.ops.builder import meaning


def run(graph: Graph) -> dict[str, int]:
    """Counts the nodes replaced.

    Raises: UnsupportedOp for what the op cannot do without steps of its own, ModelError for what
    it cannot mean.
    """
    order: list[Node] = []
    count = 0
    for node in graph.nodes:
        entry = find(node.op)
        is_short = hasattr(entry, "decompose") and not hasattr(entry, "lower")
        try:
            order += meaning(graph, node) if is_short else [node]
        except ModelError as error:
            if error.message.startswith("["):
                raise
            raise type(error)(f"{where_is(node)} {error.message}") from error
        except (Q7Error, MemoryError):
            raise
        except Exception as error:  # a malformed model can break any assumption of decompose
            raise ModelError(misfit(node, error)) from error
        count += is_short
    graph.nodes = order
    return {"nodes": count}
