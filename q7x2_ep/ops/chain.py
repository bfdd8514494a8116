"""q7::Chain: a small DAG of elementwise ops as one loop, and a reduction of its rows at the end.

Its program is text, one node after the other: `%0`, `%1`, .. are the inputs, the results count on
from there, constants of one element stand in place. Instructions are not written down anywhere:
they are the steps that the `lower` of those nodes emits, recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Optional, Union

from q7x2_ep import dtypes
from q7x2_ep.errors import UnsupportedOp
from q7x2_ep.ir.core import Graph, Node, Type, Value
from q7x2_ep.ir.shape import Dim, product
from q7x2_ep.ir.view import View
from q7x2_ep.ops import find, op
from q7x2_ep.ops.builder import Builder
from q7x2_ep.ops.common import BYTES, MAX_NDIM, expand_view, fit_guards, in_order, materialized

MAX_INPUTS, MAX_LENGTH = 12, 16  # CHAIN_INPUTS and CHAIN_LENGTH of csrc/kernels.def
MAX_STRIDE = 8  # elements: walks further apart use less than half of each cache line
MAX_ROW = 8192  # elements of a row that is reduced: it waits in L1, and one thread computes it
OPERANDS = {"unary": "x", "binary": "ab", "where": "cab", "cast": "x", "reduce": "x"}
OPERANDS.update(quantize="x", dequantize="x")  # bytes of one constant scale
FAMILIES = {"elementwise", "logic", "cast", "trigonometry", "bits", "activation", "quant", "reduce"}


class Instruction(NamedTuple):
    """One step of a chain. step: a key of OPERANDS; op: a member of the closed set `chain`, or, for
    a reduction, of `reduce`; operands: one to three.
    """

    step: str
    op: str
    operands: tuple[Value, ...]
    result: Value
    alpha: float
    beta: float


@dataclass(eq=False)
class Recorder:
    """A plan builder for `lower` that keeps the steps of a chain and refuses all others."""

    graph: Graph = field(default_factory=Graph)
    instructions: list[Instruction] = field(default_factory=list)

    def view(self, value: Value) -> View:
        return View.whole(value)

    contiguous = view

    def alias(self, value: Value, view: View) -> None:
        raise UnsupportedOp(f"{value} takes no step")

    def allocate(self, value: Value) -> View:
        raise UnsupportedOp(f"{value} is made by a copy")

    def copy(self, source: View, target: View) -> None:
        raise UnsupportedOp("a copy is no step of a chain")

    def step(self, step: str, /, **args: Any) -> None:
        if step not in OPERANDS or (step == "reduce" and not _reduces_rows(args)):
            raise UnsupportedOp(f"{step} is no step of a chain")
        operands = tuple(_storage(args[name]) for name in OPERANDS[step])
        if any(len(operand.shape) > MAX_NDIM for operand in operands):
            raise UnsupportedOp(f"{step} of more than {MAX_NDIM} dims is no step of a chain")
        parameters = args.get("alpha", 0.0), args.get("beta", 0.0)
        if step in ("quantize", "dequantize"):
            parameters = _scale_and_zero(args)
        result = _storage(args["y"])
        op = args.get("op", step)
        self.instructions.append(Instruction(step, op, operands, result, *parameters))


def _reduces_rows(args: dict[str, Any]) -> bool:
    x, n = args["x"], args["n"]
    rows = x.shape[-1:] == (n,) and args["outer"] == product(x.shape[:-1])
    rows = rows and args["inner"] == 1 and args["dtype"] == dtypes.FLOAT
    return rows and isinstance(n, int) and n <= MAX_ROW


def _scale_and_zero(args: dict[str, Any]) -> tuple[float, float]:
    """Raises: UnsupportedOp unless they are constants of all of x, and bytes on one side."""
    scale, zero = args["scale"], args["zero"]
    fixed = all(value is None or value.const is not None for value in (scale, zero))
    is_byte = args.get("y_dtype", args.get("x_dtype")) in BYTES
    if args["scales"] != 1 or not fixed or not is_byte or args.get("precision", 1) != dtypes.FLOAT:
        raise UnsupportedOp("a chain quantises bytes by one constant scale")
    return float(scale.const.item()), 0.0 if zero is None else float(zero.const.item())


def _storage(operand: Any) -> Value:
    """The value that an operand is.

    Raises: UnsupportedOp where it is a part of one.
    """
    if not isinstance(operand, View):
        return operand
    if operand.offset != 0 or not operand.is_contiguous():
        raise UnsupportedOp(f"a step of a chain reads a part of {operand.storage}")
    return operand.storage


def instructions_of(node: Node) -> Optional[list[Instruction]]:
    """What a node becomes in a chain, or None where it cannot be part of one."""
    entry = find(node.op)
    family = getattr(entry, "__module__", "").rpartition(".")[2]
    if family not in FAMILIES or not hasattr(entry, "lower"):
        return None
    recorder = Recorder()
    try:
        entry.lower(node, recorder)
    except UnsupportedOp:
        return None
    return recorder.instructions


def inputs_of(instructions: Sequence[Instruction]) -> list[Value]:
    """The values that instructions read and none of them makes, in order of their first use."""
    made = {instruction.result for instruction in instructions}
    read = [value for instruction in instructions for value in instruction.operands]
    return [value for value in dict.fromkeys(read) if value not in made]


def program_of(nodes: Sequence[Node]) -> tuple[list[Value], str]:
    """Nodes in execution order as a program: its inputs and its text."""
    from q7x2_ep.ir.text import node_text

    made = [node.output for node in nodes]
    read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)
    inputs = [value for value in read if value not in made and not _is_in_text(value)]
    names = {value: Value(str(i)) for i, value in enumerate([*inputs, *made])}
    lines = []
    for node in nodes:
        defaults = find(node.op).attributes
        attrs = {key: value for key, value in node.attrs.items() if value != defaults.get(key)}
        operands = [
            Value(value.name, *value.type, value.const) if _is_in_text(value) else names.get(value)
            for value in node.inputs
        ]
        lines.append(node_text(Node(node.op, operands, [names[node.output]], attrs)))
    return inputs, "; ".join(lines)


def _is_in_text(value: Optional[Value]) -> bool:
    return value is not None and value.const is not None and value.const.size == 1


@lru_cache(maxsize=1024)
def _parsed(program: str, inputs: int) -> list[Node]:
    """The nodes of a program, over values of which only the names mean anything."""
    from q7x2_ep.ir.text import parse

    header = ", ".join(f"%{i}" for i in range(inputs))
    return parse(f"graph({header})\n" + program.replace("; ", "\n")).nodes


def _slots(
    instructions: Sequence[Instruction], gathered: Iterable[Value]
) -> tuple[dict[Value, int], int]:
    """A block of scratch per gathered input and result but the last, and how many there are.

    A block is free again behind the last instruction that reads it.
    """
    last = {value: i for i, each in enumerate(instructions) for value in each.operands}
    slots = {value: i for i, value in enumerate(gathered)}
    free: list[int] = []
    count = len(slots)
    for i, instruction in enumerate(instructions[:-1]):
        slots[instruction.result] = free.pop() if free else count
        count = max(count, slots[instruction.result] + 1)
        free += [
            slots[v] for v in dict.fromkeys(instruction.operands) if v in slots and last[v] == i
        ]
    return slots, count


@op("q7::Chain")
class Chain:
    """The last result of `program`.

    Shapes: all results have one shape but for leading ones, to which the inputs broadcast; the last
    node may reduce its last axis, of at most MAX_ROW elements.
    """

    signature = "x* -> y"
    attributes = {"program": ""}

    def infer(node: Node) -> list[Type]:
        _, nodes = _body(node)
        return [nodes[-1].output.type]

    def reduces(node: Node) -> bool:
        """Whether rows are reduced at the end."""
        return "Reduce" in node.attrs["program"]

    def decompose(g: Any, *values: Value, program: str) -> Value:
        known: dict[Any, Value] = {str(i): value for i, value in enumerate(values)}

        def operand(value: Optional[Value]) -> Optional[Value]:
            if value is None or value.const is None:
                return value and known[value.name]
            content = (value.type, value.const.tobytes())
            if content not in known:  # one input, however often it is read
                known[content] = g.array(value.const)
            return known[content]

        for node in _parsed(program, len(values)):
            operands = map(operand, node.inputs)
            result = known[node.output.name] = g.call(node.op, *operands, **node.attrs)
        return result

    def lower(node: Node, b: Any) -> None:
        stand_ins, instructions = _recorded(node)
        inputs, walked = inputs_of(instructions), _walked_shape(instructions)
        given, shape = [stand_ins.get(value, value) for value in inputs], walked or (1,)
        for guard in fit_guards(given, walked):
            b.guard(*guard)
        reduction = instructions.pop() if instructions[-1].step == "reduce" else None
        operands, y = given, node.output
        if not reduction:
            operands, y = in_order(b, given, node.output, dense=False)
            shape = y.shape or (1,)
        views = [expand_view(_walkable(b, value), shape) for value in operands]
        rows_stride = max(b.constants["CHAIN_BLOCK"], shape[-1]) if reduction else 0
        gathered = [v for v, view in zip(inputs, views) if not _is_read_in_place(view)]
        slots, count = _slots(instructions, gathered)
        slot_bytes = b.constants["CHAIN_BLOCK"] * max(
            (dtypes.size(v.dtype) for v in slots), default=0
        )
        number = {value: i for i, value in enumerate(inputs)}
        first = b.constants["CHAIN_INPUTS"]
        number.update((each.result, first + i) for i, each in enumerate(instructions))
        read = [[number[v] for v in each.operands] for each in instructions]
        slot = [0] * (first + len(instructions))
        for value, index in slots.items():
            slot[number[value]] = index
        b.step(
            "chain",
            kernel="chain",
            inplace=None
            if reduction
            else _overwritable(node, instructions[-1], inputs, given, views),
            **{f"x{i}": None for i in range(len(inputs), first)},
            **{f"x{i}": view for i, view in enumerate(views)},
            y=y,
            work=b.threads * (count * slot_bytes),
            rows=b.threads * (4 * rows_stride),
            ndim=len(shape),
            shape=shape,
            inputs=len(inputs),
            x_bytes=[dtypes.size(value.dtype) for value in inputs],
            x_stride=[stride for view in views for stride in view.strides],
            length=len(instructions),
            op=[each.op for each in instructions],
            dtype=[each.operands[-1].dtype for each in instructions],
            to=[each.result.dtype for each in instructions],
            a=[numbers[0] for numbers in read],
            b=[numbers[min(1, len(numbers) - 1)] for numbers in read],
            c=[numbers[2 if len(numbers) > 2 else 0] for numbers in read],
            alpha=[each.alpha for each in instructions],
            beta=[each.beta for each in instructions],
            slot=slot,
            slots=count,
            slot_bytes=slot_bytes,
            reduce=reduction.op if reduction else -1,
            rows_stride=rows_stride,
        )


def _body(node: Node) -> tuple[dict[Value, Value], list[Node]]:
    """The nodes of a chain, on stand-ins for its inputs, which count no users then."""
    stand_ins = {Value(x.name, *x.type, x.const): x for x in node.inputs}
    g = Builder(Graph())
    Chain.decompose(g, *stand_ins, **node.attrs)
    return stand_ins, g.take()


def _recorded(node: Node) -> tuple[dict[Value, Value], list[Instruction]]:
    """The stand-ins of a chain, and its instructions on them."""
    stand_ins, nodes = _body(node)
    recorded = [each for inner in nodes for each in instructions_of(inner) or ()]
    return stand_ins, _dequantized_late(recorded)


def _dequantized_late(instructions: Sequence[Instruction]) -> list[Instruction]:
    """Bytes become floats in front of what first reads these: the sum of two tensors of bytes is a
    loop of its own where its instructions follow one another.
    """
    waiting: dict[Value, Instruction] = {}
    found: list[Instruction] = []
    for each in instructions:
        if each.step == "dequantize":
            waiting[each.result] = each
            continue
        found += [waiting.pop(value) for value in dict.fromkeys(each.operands) if value in waiting]
        found.append(each)
    return [*found, *waiting.values()]


def _walked_shape(instructions: Sequence[Instruction]) -> tuple[Dim, ...]:
    """What the inputs broadcast to."""
    last = instructions[-1]
    return (last.operands[0] if last.step == "reduce" else last.result).shape


def _walkable(b: Any, operand: Union[Value, View]) -> View:
    """The operand as it is stored, or dense where runs along its last dim waste cache lines."""
    view = operand if isinstance(operand, View) else b.view(operand)
    step = view.strides[-1] if view.strides and view.shape[-1] != 1 else 1
    if isinstance(step, int) and abs(step) <= MAX_STRIDE:
        return view
    return materialized(b, view) if isinstance(operand, View) else b.contiguous(operand)


def _is_read_in_place(view: View) -> bool:
    """Whether it is certain, whatever the sizes, that the view is dense or one element."""
    return view.is_contiguous() or all(s == 0 for d, s in zip(view.shape, view.strides) if d != 1)


def _overwritable(
    node: Node,
    last: Instruction,
    inputs: Sequence[Value],
    given: Sequence[Value],
    views: Sequence[View],
) -> Optional[str]:
    """The input whose memory y may take over: dense, of its size, and not read by a last Where.

    The memory of an input with no other user is likely to be free; the plan decides.
    """
    names = [
        (len(set(value.users)), f"x{i}")
        for i, (value, view) in enumerate(zip(given, views))
        if view.is_contiguous()
        and dtypes.size(value.dtype) == dtypes.size(node.output.dtype)
        and not (last.op == "where" and inputs[i] in last.operands)
    ]
    return min(names)[1] if names else None
