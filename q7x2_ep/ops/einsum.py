"""Einsum: sums of products over named dims, as the Transposes, Reshapes and MatMuls that it means.

What attention and linear layers write so is then found by the fusions like any other spelling.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, product
from q7x2_ep.ops import op
from q7x2_ep.ops.common import dims, where_is

Labels = tuple[str, ...]  # one per dim; those of an ellipsis are "...1", "...2" from the right


@op("Einsum")
class Einsum:
    """The sum over all dims whose label is not in the result, of the product of the inputs.

    Source: ONNX Einsum (opset 12).
    """

    signature = "x*: N -> y"
    attributes = {"equation": ""}

    def infer(node: Node) -> list[Type]:
        shapes = [dims(node, i) for i in range(len(node.inputs))]
        try:
            terms, result = read_equation(node.attrs["equation"], list(map(len, shapes)))
        except ValueError as error:
            raise ModelError(f"{where_is(node)} {error}") from error
        sizes: dict[str, Dim] = {}
        for labels, shape in zip(terms, shapes):
            for label, dim in zip(labels, shape):
                sizes[label] = dim if sizes.get(label, 1) == 1 else sizes[label]
        return [Type(node.inputs[0].dtype, tuple(sizes[label] for label in result))]

    reference = lambda node, *inputs: np.einsum(node.attrs["equation"], *inputs)

    def decompose(g: Any, *inputs: Value, equation: str) -> Value:
        """Factor by factor, from the left."""
        terms, result = read_equation(equation, [len(x.shape) for x in inputs])
        factors = [_diagonals(g, x, labels) for x, labels in zip(inputs, terms)]
        x, labels = factors[0]
        for i in range(1, len(inputs)):
            wanted = {*result, *(label for term in terms[i + 1 :] for label in term)}
            x, labels = _multiply(g, (x, labels), factors[i], wanted, result)
        y = _arranged(g, *_summed(g, x, labels, result), result)
        return g.Identity(y) if y is inputs[0] else y


def read_equation(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """The labels of each input and of the result.

    Raises: ValueError where they are not what the ranks want.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"{equation!r} has {len(terms)} terms for {len(ranks)} inputs")
    extra = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks)]
    if any(n < 0 or (n and "..." not in term) for term, n in zip(terms, extra)):
        raise ValueError(f"{equation!r} does not fit inputs of ranks {list(ranks)}")
    labels = [_labels(term, n) for term, n in zip(terms, extra)]
    whole = max((n for term, n in zip(terms, extra) if "..." in term), default=0)
    if not arrow:
        letters = left.replace(",", "").replace("...", "")
        once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        right = "..." * ("..." in left) + "".join(once)
    result = _labels(right, whole)
    if len(set(result)) < len(result):
        raise ValueError(f"{equation!r} has a label twice in its result")
    if not set(result) <= set().union(*labels):
        raise ValueError(f"{equation!r} has a label in its result that no input has")
    return labels, result


def _labels(term: str, extra: int) -> Labels:
    before, dots, behind = term.partition("...")
    return (*before, *(f"...{extra - i}" for i in range(extra if dots else 0)), *behind)


def _diagonals(g: Any, x: Value, labels: Labels) -> tuple[Value, Labels]:
    """One dim in place of two with the same label: with a row more, a row of the diagonal begins
    with each element of it, n + 1 after the one before.
    """
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            pair = (first, labels.index(label, first + 1))
            rest = [axis for axis in range(len(labels)) if axis not in pair]
            x = g.Transpose(x, perm=(*rest, *pair))
            *lead, n, _ = x.shape
            x = g.Concat(x, g.Slice(x, [0], [1], [len(rest)]), axis=len(rest))
            x = g.Slice(g.reshape(x, (*lead, n, n + 1)), [0], [1], [len(rest) + 1])
            x = g.reshape(x, (*lead, n))
            labels = (*(labels[axis] for axis in rest), label)
    return x, labels


def _multiply(
    g: Any,
    left: tuple[Value, Labels],
    right: tuple[Value, Labels],
    wanted: Collection[str],
    result: Labels,
) -> tuple[Value, Labels]:
    """The product of two factors without the labels that nobody wants any more; with its labels."""
    if result and result[-1] in left[1]:  # the last dim of the result shall be MatMul's too
        left, right = right, left
    (a, a_labels), (b, b_labels) = (
        _summed(g, x, labels, {*wanted, *others})
        for (x, labels), (_, others) in ((left, right), (right, left))
    )
    both = [label for label in a_labels if label in b_labels]
    batch = [label for label in both if label in wanted]
    inner = [label for label in both if label not in wanted]
    rows = [label for label in a_labels if label not in both]
    if a_labels != (*batch, *rows, *inner):  # it is transposed anyway
        batch, rows = _ordered(batch, result), _ordered(rows, result)
    columns = _ordered([label for label in b_labels if label not in both], result)
    sizes = {**dict(zip(b_labels, b.shape)), **dict(zip(a_labels, a.shape))}
    a = _arranged(g, a, a_labels, (*batch, *rows, *inner))
    b = _arranged(g, b, b_labels, (*batch, *inner, *columns))
    lead, labels = b.shape[: len(batch)], (*batch, *rows, *columns)
    if not inner:
        b = g.reshape(b, (*lead, *(1 for _ in rows), *b.shape[len(batch) :]))
        a = g.reshape(a, (*a.shape, *(1 for _ in columns)))
        return g.Mul(a, b), labels
    depth, width = product(sizes[x] for x in inner), product(sizes[x] for x in columns)
    # all rows but one are a batch that b is repeated for; a bare vector of rows gets a dim
    spread = (1 for _ in rows[:-1]) if batch else ()
    b = g.reshape(b, (*lead, *spread, depth, width))
    kept = a.shape[: len(batch) + len(rows)]
    a = g.reshape(a, (*(kept if rows else (*kept, 1)), depth))
    y = g.MatMul(a, b)
    lead = y.shape[: len(batch)]
    return g.reshape(y, (*lead, *(sizes[x] for x in (*rows, *columns)))), labels


def _summed(g: Any, x: Value, labels: Labels, wanted: Collection[str]) -> tuple[Value, Labels]:
    axes = [i for i, label in enumerate(labels) if label not in wanted]
    if axes:
        x = g.ReduceSum(x, axes, keepdims=0)
    return x, tuple(label for label in labels if label in wanted)


def _ordered(labels: Sequence[str], result: Labels) -> list[str]:
    """As the result has them; those that are summed later stay in front."""
    return sorted(labels, key=lambda label: result.index(label) if label in result else -1)


def _arranged(g: Any, x: Value, labels: Labels, wanted: Sequence[str]) -> Value:
    perm = tuple(labels.index(label) for label in wanted)
    return x if perm == tuple(range(len(perm))) else g.Transpose(x, perm=perm)
