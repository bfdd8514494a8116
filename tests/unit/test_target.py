"""What is chosen of the kernels that a library describes."""

import pytest

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
    assert target.kernel("qgemm", "u8").isa == byte
