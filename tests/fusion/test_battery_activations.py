"""Battery of the activations: every spelling becomes one op and one step; near ones stay."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any, Callable

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import q7x2_ep
from tests.fusion.battery import (
    SIZES,
    assert_correct,
    assert_fuses,
    assert_perturbed_stays,
    feeds_for,
    fused_ops,
)

X = {"x": ("B", "S", 8)}
C, D = sqrt(2 / pi), 0.044715
FLOAT, INT8 = 1, 3  # of onnx.TensorProto
Formula = Callable[..., Any]

# GELU: 4 ways to scale the operand of Erf and 6 to halve; 5 cubes or squares and 3 ways to halve

SCALED: dict[str, Formula] = {
    "div": lambda g, x: g.Div(x, sqrt(2)),
    "mul": lambda g, x: g.Mul(x, sqrt(0.5)),
    "div_of_sqrt": lambda g, x: g.Div(x, g.open(g.Sqrt(2.0))),
    "mul_of_reciprocal": lambda g, x: g.Mul(x, g.open(g.Reciprocal(g.open(g.Sqrt(2.0))))),
}
HALVED: dict[str, Formula] = {
    "half_x_first": lambda g, x, y: g.Mul(g.Mul(x, 0.5), y),
    "half_last": lambda g, x, y: g.Mul(g.Mul(x, y), 0.5),
    "half_inside": lambda g, x, y: g.Mul(x, g.Mul(y, 0.5)),
    "half_x_first_div": lambda g, x, y: g.Mul(g.Div(x, 2.0), y),
    "half_last_div": lambda g, x, y: g.Div(g.Mul(x, y), 2.0),
    "half_inside_div": lambda g, x, y: g.Mul(x, g.Div(y, 2.0)),
}
CUBES: dict[str, Formula] = {
    "pow": lambda g, x: g.Mul(g.Pow(x, 3.0), D),
    "xx_x": lambda g, x: g.Mul(g.Mul(g.Mul(x, x), x), D),
    "square_x": lambda g, x: g.Mul(g.Mul(g.Pow(x, 2.0), x), D),
    "dx_x_x": lambda g, x: g.Mul(g.Mul(g.Mul(x, D), x), x),
    "dxx_x": lambda g, x: g.Mul(g.Mul(g.Mul(x, x), D), x),
}
FACTORED: dict[str, Formula] = {  # operands of Tanh
    "fast": lambda g, x: g.Mul(g.Mul(x, C), g.Add(g.Mul(g.Mul(x, D), x), 1.0)),
    "square": lambda g, x: g.Mul(g.Mul(x, C), g.Add(g.Mul(g.Mul(x, x), D), 1.0)),
    "outside": lambda g, x: g.Mul(g.Mul(x, g.Add(g.Mul(g.Mul(x, x), D), 1.0)), C),
    "distributed": lambda g, x: g.Mul(x, g.Add(g.Mul(g.Mul(x, x), C * D), C)),
}


def erf_form(scaled: Formula, halved: Formula) -> Formula:
    def gelu(g: Any, x: Any) -> Any:
        return halved(g, x, g.Add(g.Erf(scaled(g, x)), 1.0))

    return gelu


def tanh_form(inner: Formula, halved: Formula) -> Formula:
    def gelu(g: Any, x: Any) -> Any:
        return halved(g, x, g.Add(g.Tanh(inner(g, x)), 1.0))

    return gelu


def cubic(cube: Formula) -> Formula:
    return lambda g, x: g.Mul(g.Add(x, cube(g, x)), C)


@pytest.mark.parametrize("halved", HALVED)
@pytest.mark.parametrize("scaled", SCALED)
def test_gelu_erf(scaled: str, halved: str) -> None:
    spelling = erf_form(SCALED[scaled], HALVED[halved])
    assert_fuses(spelling, X, {"Gelu": 1}, steps=1)
    assert_perturbed_stays(spelling, X, {"Gelu"})


INNER = {name: cubic(cube) for name, cube in CUBES.items()} | FACTORED


@pytest.mark.parametrize("halved", ["half_x_first", "half_last", "half_inside"])
@pytest.mark.parametrize("inner", INNER)
def test_gelu_tanh(inner: str, halved: str) -> None:
    spelling = tanh_form(INNER[inner], HALVED[halved])
    assert_fuses(spelling, X, {"Gelu": 1}, steps=1)
    assert_perturbed_stays(spelling, X, {"Gelu"})


OTHERS: dict[str, tuple[Formula, str]] = {
    "gelu_erfc": (
        lambda g, x: g.Mul(g.Mul(x, 0.5), g.Sub(1.0, g.Erf(g.Div(g.Neg(x), sqrt(2))))),
        "Gelu",
    ),
    "gelu_half_plus_half_erf": (
        lambda g, x: g.Mul(x, g.Add(g.Mul(g.Erf(g.Div(x, sqrt(2))), 0.5), 0.5)),
        "Gelu",
    ),
    "gelu_as_sigmoid": (
        lambda g, x: g.Mul(x, g.Sigmoid(g.Mul(g.Add(x, g.Mul(g.Pow(x, 3.0), D)), 2 * C))),
        "Gelu",
    ),
    "silu": (lambda g, x: g.Mul(x, g.Sigmoid(x)), "Swish"),
    "silu_quotient": (lambda g, x: g.Div(x, g.Add(g.Exp(g.Neg(x)), 1.0)), "Swish"),
    "silu_one_over": (
        lambda g, x: g.Mul(x, g.Div(1.0, g.Add(g.Exp(g.Neg(x)), 1.0))),
        "Swish",
    ),
    "silu_reciprocal": (
        lambda g, x: g.Mul(x, g.Reciprocal(g.Add(g.Exp(g.Mul(x, -1.0)), 1.0))),
        "Swish",
    ),
    "quick_gelu": (lambda g, x: g.Mul(x, g.Sigmoid(g.Mul(x, g.free(1.702)))), "Swish"),
    "quick_gelu_quotient": (
        lambda g, x: g.Div(x, g.Add(g.Exp(g.Mul(x, g.free(-1.702))), 1.0)),
        "Swish",
    ),
    "sigmoid": (lambda g, x: g.Div(1.0, g.Add(g.Exp(g.Neg(x)), 1.0)), "Sigmoid"),
    "mish": (lambda g, x: g.Mul(x, g.Tanh(g.Softplus(x))), "Mish"),
    "mish_log": (lambda g, x: g.Mul(x, g.Tanh(g.Log(g.Add(g.Exp(x), 1.0)))), "Mish"),
    "hard_swish": (lambda g, x: g.Div(g.Mul(x, relu6(g, x)), 6.0), "HardSwish"),
    "hard_swish_inside": (lambda g, x: g.Mul(x, g.Div(relu6(g, x), 6.0)), "HardSwish"),
    "hard_swish_sixth": (lambda g, x: g.Mul(g.Mul(x, 1 / 6), relu6(g, x)), "HardSwish"),
    "hard_swish_min_max": (
        lambda g, x: g.Div(g.Mul(x, g.Min(g.Max(g.Add(x, 3.0), 0.0), 6.0)), 6.0),
        "HardSwish",
    ),
    "relu": (lambda g, x: g.Max(x, 0.0), "Relu"),
    "clip": (lambda g, x: g.Min(g.Max(x, g.free(-0.5)), g.free(0.5)), "Clip"),
    "relu6": (lambda g, x: g.Min(g.Relu(x), g.free(6.0)), "Clip"),
    "leaky_max": (lambda g, x: g.Max(x, g.Mul(x, g.free(0.1))), "LeakyRelu"),
    "leaky_where": (
        lambda g, x: g.Where(g.Less(x, 0.0), g.Mul(x, g.free(0.1)), x),
        "LeakyRelu",
    ),
    "squared_relu": (lambda g, x: square(g, g.Relu(x)), "q7::SquaredRelu"),
    "squared_relu_pow": (lambda g, x: g.Pow(g.Relu(x), 2.0), "q7::SquaredRelu"),
    "softcap": (lambda g, x: g.Mul(g.Tanh(g.Div(x, 30.0)), 30.0), "q7::Softcap"),
    "softcap_mul": (lambda g, x: g.Mul(g.Tanh(g.Mul(x, 1 / 30)), 30.0), "q7::Softcap"),
}


def relu6(g: Any, x: Any) -> Any:
    return g.Clip(g.Add(x, 3.0), 0.0, 6.0)


def square(g: Any, x: Any) -> Any:
    return g.Mul(x, x)


@pytest.mark.parametrize("name", OTHERS)
def test_other_activations(name: str) -> None:
    def activation(g: Any, x: Any) -> Any:
        return OTHERS[name][0](g, x)

    target = OTHERS[name][1]
    assert_fuses(activation, X, {target: 1}, steps=1)
    assert_perturbed_stays(activation, X, {target})


@pytest.mark.parametrize("alpha, beta, found", [(1 / 6, 0.5, 1), (0.2, 0.5, 0), (1 / 6, 0.4, 0)])
def test_hard_swish_of_an_attribute(alpha: float, beta: float, found: int) -> None:
    def gate(g: Any, x: Any) -> Any:
        return g.Mul(x, g.HardSigmoid(x, alpha=alpha, beta=beta))

    assert_fuses(gate, X, {"HardSwish": found})


def test_bytes_are_no_activation() -> None:
    zero, six = np.array(0, np.int8), np.array(6, np.int8)

    def relu6(g: Any, x: Any) -> Any:
        return g.Min(g.Max(g.Cast(x, to=INT8), zero), six)

    assert_fuses(relu6, {"x": ("int64", ("B", "S"))}, {"Relu": 0, "Clip": 0})


@pytest.mark.parametrize("op", ["Gelu", "BiasGelu", "FastGelu", "BiasFastGelu", "QuickGelu"])
def test_com_microsoft(op: str) -> None:
    domain, inputs = "com.microsoft", ["x", "bias"] if "Bias" in op else ["x"]
    attrs = {"alpha": 1.5} if op == "QuickGelu" else {}
    name = "FastGelu" if "Fast" in op else op
    node = helper.make_node(name, inputs, ["y"], domain=domain, **attrs)
    x, y = (helper.make_tensor_value_info(name, FLOAT, ["B", "S", 8]) for name in "xy")
    bias = numpy_helper.from_array(np.linspace(-1, 1, 8, dtype=np.float32), "bias")
    graph = helper.make_graph([node], op, [x], [y], [bias] if len(inputs) == 2 else [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    found, _ = fused_ops(model)
    assert found["Swish" if op == "QuickGelu" else "Gelu"] + found["q7::Chain"] == 1
    assert_correct(model)
    for sizes in SIZES:  # the oracle of assert_correct reads the model as the engine does
        feeds = feeds_for(model, sizes)
        data = model.SerializeToString()
        theirs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        ours = q7x2_ep.InferenceSession(data).run(None, feeds)[0]
        np.testing.assert_allclose(ours, theirs.run(None, feeds)[0], rtol=1e-5, atol=1e-6)
