"""The plan as a listing: one line per step, symbolic sizes as they are. The listing is
golden-tested.
"""

from __future__ import annotations

from q7x2_ep.plan.parts import Operand, Plan, Step


def listing(plan: Plan) -> str:
    """Steps with kernel, operands, args and the nodes that each stands for.

    An operand is <space><index>[+byte offset]: a arena buffer, w packed weights, c constant, i
    feed, o output.
    """
    buffers = {id(storage): i for i, storage in enumerate(plan.arena())}
    lines = [
        f"step op              kernel               operands and args  # from   ({plan.graph.name})"
    ]
    for number, step in enumerate(plan.steps):
        kernel = step.kernel.name if step.kernel else "-"
        operands = " ".join(
            f"{name}={_place(at, buffers)}" for name, at in step.operands.items() if at is not None
        )
        sources = ", ".join(step.sources)
        lines.append(
            f"{number:04d} {step.op:<15} {kernel:<20} {operands} {_args(step)}  # {sources}"
        )
    for i, storage in enumerate(plan.arena()):
        lines.append(
            f"a{i}: {storage.bytes} bytes, steps {storage.first}..{storage.last}  # {storage.name}"
        )
    lines += [
        f"guard: {g.left} {'==' if g.kind == 'eq' else '>='} {g.right}  # {g.text}"
        for g in plan.guards
    ]
    lines.append(f"packed weights: {plan.packed_bytes} bytes in {len(plan.packs)} packs")
    return "\n".join(lines) + "\n"


def _place(at: Operand, buffers: dict[int, int]) -> str:
    root, offset = at.storage.place()
    if root.space == "arena":
        where = f"a{buffers[id(root)]}"
    elif root.space == "constant":
        where = f"c{root.index}" if root.index else "w"
    else:
        where = f"{root.space[0]}{root.index}"
    total = offset + at.offset
    return where if total == 0 else f"{where}+{total}"


def _args(step: Step) -> str:
    parts = []
    for name, value in step.fields.items():
        if isinstance(value, (list, tuple)):
            value = "[" + ",".join(map(str, value)) + "]"
        parts.append(f"{name}={value}")
    return " ".join(parts)
