"""A Scan goes along the first axis of what it takes apart and of what it joins: where a model names
other axes, Transposes turn its operands and results. Then a flow can run it.
"""

from __future__ import annotations

from q7x2_ep.ir.core import UNKNOWN, Graph, Node
from q7x2_ep.ir.shape import Dim
from q7x2_ep.passes.infer import infer_again


def run(graph: Graph) -> dict[str, int]:
    """Counts the nodes that were turned."""
    scans = [node for node in graph.nodes if node.op == "Scan" and not node.attrs["batched"]]
    sizes: dict[str, Dim] = {}
    count = sum(_turn(graph, node, sizes) for node in scans)
    graph.rename_sizes(sizes)
    return {"nodes": count}


def _turn(graph: Graph, scan: Node, sizes: dict[str, Dim]) -> bool:
    """Whether there was something to turn; enters what the sizes that the scan told are now."""
    attrs = scan.attrs
    last = len(scan.inputs) - attrs["captures"]
    first = last - attrs["num_scan_inputs"]
    taken = dict(zip(range(first, last), attrs["scan_input_axes"] or ()))
    # As many states come first among the results.
    joined = dict(zip(range(first, len(scan.outputs)), attrs["scan_output_axes"] or ()))
    operands = [scan.inputs[i] for i in taken] + [scan.outputs[i] for i in joined]
    if not any((*taken.values(), *joined.values())) or any(v.shape is None for v in operands):
        return False
    inputs, outputs = list(scan.inputs), list(scan.outputs)
    before, behind = [], []
    for i, axis in taken.items():
        rank = len(inputs[i].shape)
        order = [axis % rank, *(j for j in range(rank) if j != axis % rank)]
        value = graph.new_value(UNKNOWN, inputs[i].name)
        before.append(Node("Transpose", [inputs[i]], [value], {"perm": tuple(order)}, scan.name))
        inputs[i] = value
    scan.detach()
    for i, axis in joined.items():
        rank = len(outputs[i].shape)
        order = list(range(1, rank))
        order.insert(axis % rank, 0)
        value = graph.new_value(UNKNOWN, outputs[i].name)
        behind.append(Node("Transpose", [value], [outputs[i]], {"perm": tuple(order)}, scan.name))
        outputs[i] = value
    attrs = {**attrs, "scan_input_axes": None, "scan_output_axes": None}
    whole = Node("Scan", inputs, outputs, attrs, scan.name, scan.sources)
    at = graph.nodes.index(scan)
    graph.nodes[at : at + 1] = [*before, whole, *behind]
    for node in (*before, whole, *behind):  # dce asks which nodes tell a size
        infer_again(node, sizes)
    return True
