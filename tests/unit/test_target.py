"""What is chosen of the kernels that a library describes."""

from typing import Optional

import numpy as np
import pytest

from q7x2_ep.backend.cpu.library import load
from q7x2_ep.ir.text import parse
from q7x2_ep.ops.attention import kept_blocks
from q7x2_ep.ops.quant_pack import fits_tiles
from q7x2_ep.passes import infer
from q7x2_ep.plan.build import build
from q7x2_ep.plan.target import MANY_CPUS, Target

TEXT = """cpu scalar avx2 avx512 amx
kernel gemm f32 amx 32 32 compiled=1 supported=1
kernel gemm f32 avx512 14 32 compiled=1 supported=1
kernel gemm f32 scalar 4 8 compiled=1 supported=1
kernel qgemm u8 amx 32 32 compiled=1 supported=1
kernel qgemm u8 avx512 14 32 compiled=1 supported=1
"""


@pytest.mark.parametrize(
    "cap, cpus, floats, byte",
    [
        ("", MANY_CPUS, "amx", "amx"),
        ("", MANY_CPUS + 1, "avx512", "amx"),
        ("amx", 64, "amx", "amx"),
        ("avx512", 64, "avx512", "avx512"),
        ("avx512", 2, "avx512", "avx512"),
    ],
)
def test_tiles_are_for_bytes_where_there_are_many_cpus(cap, cpus, floats, byte):
    target = Target.parse(TEXT, cap, cpus=cpus)
    assert target.kernel("gemm").isa == floats
    assert target.kernel("gemm", tiles=False).isa == "avx512"
    assert target.kernel("qgemm", "u8").isa == byte


@pytest.mark.parametrize("cap, isa", [("", "avx512"), ("avx2", "scalar")])
def test_a_set_without_kernels_in_this_build_is_not_what_it_has(cap, isa):
    text = TEXT.replace("amx 32 32 compiled=1 supported=1", "amx 32 32 compiled=0 supported=0")
    assert Target.parse(text, cap).isa == isa


@pytest.mark.parametrize(
    "x, w, op, attrs",
    [
        ("1,64,56,56", "256,64,1,1", "conv_planes", ""),
        ("1,64,14,14", "256,64,1,1", "conv_direct", ""),
        ("1,64,56,56", "64,64,3,3", "winograd", ""),
        ("1,256,14,14", "256,256,3,3", "winograd", ""),
        ("1,512,8,8", "512,512,3,3", "winograd", ""),
        ("1,160,17,17", "192,160,7,7", "conv_last", ""),
        ("1,64,9,9", "3,64,3,3", "conv", ""),
        ("1,16,8,14,14", "16,16,3,3,3", "winograd", ""),
        ("1,4,8,14,14", "16,4,3,3,3", "conv_direct", ""),
        ("1,64,8,14,14", "64,64,3,1,1", "winograd", ""),
        ("1,64,8,14,14", "64,64,4,1,1", "winograd", ""),
        ("1,64,8,14,14", "64,64,2,1,1", "conv_last", ""),
        ("2,512,9,9", "512,512,3,3", "winograd", ""),
        ("1,256,12,12", "256,256,3,3", "winograd", ""),
        ("1,64,300", "64,64,3", "winograd", ""),
        ("1,64,300", "64,64,7", "winograd", ""),
        ("1,160,17,17", "192,160,1,7", "winograd", ""),
        ("1,32,300", "32,32,3", "conv_direct", ""),
        ("1,256,14,14", "1024,256,1,1", "conv_last", ""),
        ("N,1024,H,W", "512,1024,1,1", "conv_last", ""),
        ("2,192,13,13", "256,192,5,5", "conv_last", ""),
        ("N,1024,H,W", "256,1024,1,1", "conv_last", ""),
        ("1,256,28,28", "256,256,3,3", "winograd", "{strides=[2, 2]}"),
        ("1,512,19,19", "512,512,3,3", "winograd", "{strides=[2, 2]}"),
        ("1,512,17,17", "512,512,3,3", "conv_last", "{strides=[2, 2]}"),
        ("4,512,14,14", "512,512,3,3", "winograd", "{strides=[2, 2]}"),
        ("N,512,14,14", "512,512,3,3", "conv_last", "{strides=[2, 2]}"),
        ("1,256,28,28", "1024,256,1,1", "conv_last", "{strides=[2, 2]}"),
        ("1,256,14,14", "1024,256,1,1", "conv_last", "{strides=[2, 2]}"),
        ("2,256,12,12", "256,256,5,5", "conv_last", ""),
        ("N,1024,H,W", "256,1024,1,1", "conv_last", "{strides=[2, 2]}"),
        ("1,256,28,28", "256,256,5,5", "conv_last", ""),
        ("1,512,14,14", "1024,256,1,1", "conv_last", "{group=2}"),
        ("1,128,14,14", "1024,128,1,1", "conv_last", ""),
        ("1,127,14,14", "1024,127,1,1", "conv_last", ""),
        ("1,80,14,14", "1024,80,1,1", "conv_last", ""),
        ("1,112,14,14", "672,112,1,1", "conv_last", ""),
        ("1,96,7,7", "1024,96,1,1", "conv_last", ""),
        ("1,192,14,14", "192,192,1,1", "conv_last", ""),
        ("1,192,7,7", "192,192,1,1", "conv_last", ""),
        ("1,128,7,7", "512,128,1,1", "conv_last", ""),
        ("1,192,7,7", "256,192,1,1", "conv_last", ""),
        ("1,512,28,28", "128,512,1,1", "conv_last", ""),
        ("1,512,28,28", "160,512,1,1", "conv_last", ""),
        ("1,1024,8,8", "2048,1024,1,1", "conv_last", ""),
        ("8,1024,7,7", "2048,1024,1,1", "conv_last", ""),
        ("N,1024,7,7", "2048,1024,1,1", "conv_last", ""),
        ("8,1024,7,7", "2048,1024,1,1", "conv_last", "{strides=[2, 2]}"),
        ("1,192,9,9", "256,192,1,1", "conv_last", ""),
        ("1,512,28,28", "255,512,1,1", "conv_last", ""),
    ],
)
def test_convolutions_are_not_in_tiles(x, w, op, attrs):
    assert isa_of(op, x, f"f32[{w}]", f"Conv(%x, %w) {attrs}") == "avx512"


@pytest.mark.parametrize(
    "m, k, n, isa",
    [
        ("N", 768, 768, "amx"),
        ("N", 128, 256, "amx"),
        ("N", 2048, 127, "avx512"),
        ("N", 127, 2048, "avx512"),
        ("N", 160, 160, "avx512"),
        ("N", 192, 192, "amx"),
        ("N", 64, 4096, "avx512"),
        (32, 768, 768, "amx"),
        (33, 768, 768, "avx512"),
        (63, 768, 768, "avx512"),
        (64, 768, 768, "amx"),
    ],
)
def test_products_are_in_tiles_where_sums_are_long_and_columns_many(m, k, n, isa):
    w = np.random.default_rng(0).random((k, n), np.float32)
    assert isa_of("gemm", f"{m},{k}", f"f32[{k},{n}]", "MatMul(%x, %w)", w) == isa
    halves = "amx" if min(k, n) > 100 else isa  # weights that 16 bits hold have fewer parts
    assert isa_of("gemm", f"{m},{k}", f"f32[{k},{n}]", "MatMul(%x, %w)", np.ones_like(w)) == halves
    scores = f"graph(%x: f32[{m},{k}], %w: f32[{k},{n}])\n  %y = MatMul(%x, %w)\n  return %y\n"
    graph = parse(scores)
    infer.run(graph)
    (step,) = build(graph, Target.parse(load("").description, "amx", foreign=True)).steps
    assert (step.op, step.kernel.isa) == ("matmul", isa)


@pytest.mark.parametrize(
    "k, n, fits", [(32, 4096, False), (48, 171, True), (96, 85, False), (96, 96, True)]
)
def test_products_of_bytes_are_in_tiles_where_sums_are_long(k, n, fits):
    assert fits_tiles(k, n) == fits
    target = Target.parse(load("").description, "amx", foreign=True)
    assert target.kernel("qgemm", tiles=fits).isa == ("amx" if fits else "avx512_vnni")


def test_attention_is_in_tiles_where_keys_are_many():
    target = Target.parse(load("").description, "amx", foreign=True)
    for Skv, D, kept in ((255, 64, 0), (256, 64, 2), (128, 128, 1), (300, 32, 0), (5000, 40, 32)):
        assert kept_blocks(target.constants, "amx", 700, Skv, D, D) == kept


def isa_of(op: str, x: str, w: str, call: str, given: Optional[np.ndarray] = None) -> str:
    """Of the one step with that op, on a CPU with AMX; given: w."""
    graph = parse(f"graph(%x: f32[{x}])\n  %w = {w}\n  %y = {call}\n  return %y\n")
    infer.run(graph)
    if given is not None:
        graph.nodes[0].inputs[1].const = given
    plan = build(graph, Target.parse(load("").description, "amx", foreign=True))
    (step,) = [step for step in plan.steps if step.op == op]
    return step.kernel.isa
