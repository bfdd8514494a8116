"""Einsum as its decomposition: against numpy, in models with symbolic dims."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import q7x2_ep
from tests.kernels.harness import tolerance

EQUATIONS = (
    *("bhid,bhjd->bhij", "bhij,bhjd->bhid", "bnhd,bmhd->bhnm", "bhnm,bmhd->bnhd"),  # attention
    *("bskgd,btkd->bkgst", "bkgst,btkd->bskgd", "bhnk,bmk->bhnm", "bmk,bhnk->bhnm"),  # shared keys
    *("bsd,dhk->bshk", "bshk,hkd->bsd", "bsd,ed->bse", "...d,de->...e", "...id,...jd->...ij"),
    *("i,j->ij", "i,i->", "ij,j->i", "i,ij->j", "ij,ij->ij", "ij,ij->i", "ij,kl->il", "ij, jk"),
    *("ij->ji", "ij->j", "ij->", "bij->b", "b...->...b", "...i->...", "ba"),
    *("bi,bij,bj->b", "ij,jk,kl->il", "bhwc,hkc->bhwk", "a,a,a->a", "b,ij->bij", "bijk,bjk->bi"),
    *("ii->i", "ii->", "...ii->...i", "iji->ji", "iii->i", "iij,jk->ik", "...->...", "i,ii->i"),
)
SIZES = {"a": 3, "b": 2, "i": 3, "j": 5, "k": 4, "l": 2, "d": 4, "e": 6, "h": 2, "n": 3, "m": 5}


def shapes(equation: str) -> list[list[int]]:
    terms = equation.replace(" ", "").split("->")[0].replace("...", "bh").split(",")
    return [[SIZES.get(letter, 3) for letter in term] for term in terms]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str, symbolic: bool) -> None:
    terms = equation.replace(" ", "").split("->")[0].replace("...", "bh").split(",")
    names = [f"x{i}" for i in range(len(terms))]
    random = np.random.default_rng(0)
    feeds = {
        name: random.standard_normal(shape).astype(np.float32)
        for name, shape in zip(names, shapes(equation))
    }
    declared = [list(term) if symbolic else feeds[name].shape for name, term in zip(names, terms)]
    graph = helper.make_graph(
        [helper.make_node("Einsum", names, ["y"], equation=equation)],
        "einsum",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in zip(names, declared)
        ],
        [onnx.ValueInfoProto(name="y")],
    )
    graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with q7x2_ep.InferenceSession(model.SerializeToString()) as session:
        (y,) = session.run(None, feeds)
    arrays = [feeds[name].astype(np.float64) for name in names]
    wanted = np.einsum(equation, *arrays)
    products = int(np.einsum(equation, *map(np.ones_like, arrays)).max())
    allowed = tolerance(products, np.einsum(equation, *map(np.abs, arrays)))
    assert (np.abs(y - wanted) <= np.minimum(allowed, 1e-5 * (1 + np.abs(wanted)))).all()


@pytest.mark.parametrize(
    "equation, reason", [("ij->ii", "twice"), ("ij,jk->il", "no input"), ("ijk->i", "ranks")]
)
def test_refused(equation: str, reason: str) -> None:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 3])] * (
        equation.count(",") + 1
    )
    names = ["x"] * len(inputs)
    graph = helper.make_graph(
        [helper.make_node("Einsum", names, ["y"], equation=equation)],
        "einsum",
        inputs[:1],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(q7x2_ep.errors.Q7Error, match=reason):
        q7x2_ep.InferenceSession(model.SerializeToString())
