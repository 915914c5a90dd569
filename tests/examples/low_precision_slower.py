"""Traces on which `low-precision-slower` must speak, and look-alikes on which it must not, on an H200."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.decode_steps import STEP, Work, eager, graphed
from tests.examples.gemm_below_roofline import BF16, REST, on_h200
from tests.kernel_names import GEMM

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kineto import Kineto

FP8, INT, FLOAT = "c10::Float8_e4m3fn", "int", "float"
MARLIN = "void marlin::Marlin<__nv_bfloat16, 1125899906843648l, 256, 1, 8, 8, false, 4, 8, false>(int4 const*)"
MARLIN_EXPERTS = "void marlin_moe_wna16::Marlin<__nv_bfloat16, 1125899906843648l, 256, 1, 8, 8, false, 4>(int4 const*)"
PROMPT = "step[EXTEND bs=1 toks=4096]"
K, N = 4096, 14_336


def marlin(us: float, rows: int) -> Work:
    """Return [rows, 4096] × [4096, 14336] in 4 bits, a scale for 128 of them."""
    dims = [[rows, K], [], [K // 16, N * 2], [], [K // 128, N], [], [], [], [], [], [132]]
    types = [BF16, "", INT, "", BF16, "", "", "", "", "", INT]
    return Work(MARLIN, us, "_C::gptq_marlin_gemm", dims, types, (132, 1, 1))


def marlin_experts(us: float, tokens: int) -> Work:
    """Return [tokens, 2048] through 8 of 64 experts' [2048, 1024] in 4 bits."""
    dims = [[tokens, 2048], [], [64, 128, 2048], [], [64, 16, 1024], [], [], [], [132], [], [], [], [tokens, 8]]
    types = [BF16, "", INT, "", BF16, "", "", "", INT, "", "", "", FLOAT]
    return Work(MARLIN_EXPERTS, us, "_moe_C::moe_wna16_marlin_gemm", dims, types, (132, 1, 1))


def scaled(us: float, rows: int, *, dtype: str = FP8) -> Work:
    dims = [[rows, K], [K, N], [1], [1]]
    return Work("sm90_fp8_gemm", us, "aten::_scaled_mm", dims, [dtype, dtype, FLOAT, FLOAT], (132, 1, 1))


HEAD = Work(GEMM, 70.0, "aten::mm", [[1, 6144], [6144, 19_360]], [BF16, BF16], (104, 1, 1))


def steps(*layer: Work, annotation: str = PROMPT) -> Kineto:
    return on_h200(eager([[*([*layer, *REST] * 10), HEAD]] * 3, annotation=annotation))


def marlin_on_a_prompt() -> Kineto:
    """481 GFLOP: 609 µs at 790 TFLOPS, 764 for a good kernel."""
    return steps(marlin(1200.0, 4096))


def experts_of_marlin_on_a_prompt() -> Kineto:
    """137 GFLOP: 174 µs, 220 for a good kernel."""
    return steps(marlin_experts(400.0, 4096))


def fp8_that_multiplies_no_faster_than_half_of_16_bits() -> Kineto:
    return steps(scaled(1500.0, 4096))


def marlin_on_one_token() -> Kineto:
    """30.3 MB: 7 µs; in 16 bits 27.3, and 37 for a good kernel."""
    return steps(marlin(14.0, 1), annotation=STEP)


def experts_of_marlin_on_one_token() -> Kineto:
    """8.7 MB of eight experts: 2 µs, 5.5 for a good kernel; in 16 bits 7.8, and 12.8."""
    return steps(marlin_experts(7.0, 1), annotation=STEP)


def experts_of_marlin_that_16_bits_would_beat() -> Kineto:
    """The same in 20 µs."""
    return steps(marlin_experts(20.0, 1), annotation=STEP)


def fp8_as_fast_as_it_should_be() -> Kineto:
    return steps(scaled(400.0, 4096))


def fp8_that_is_slow_but_beats_16_bits() -> Kineto:
    return steps(scaled(720.0, 4096))


def slow_in_16_bits() -> Kineto:
    dims = [[4096, K], [K, N]]
    return steps(Work(GEMM, 1500.0, "aten::mm", dims, [BF16, BF16]))


def marlin_without_shapes() -> Kineto:
    return on_h200(graphed([[Work(MARLIN, 1200.0), *REST] * 10] * 3, annotation=PROMPT))


def small_weights() -> Kineto:
    dims = [[1, 2048], [], [128, 512], [], [16, 256], [], [], [], [], [], [132]]
    types = [BF16, "", INT, "", BF16, "", "", "", "", "", INT]
    return steps(Work(MARLIN, 8.0, "_C::gptq_marlin_gemm", dims, types), annotation=STEP)


FIRING: list[Callable[[], Kineto]] = [
    marlin_on_a_prompt,
    experts_of_marlin_on_a_prompt,
    fp8_that_multiplies_no_faster_than_half_of_16_bits,
    experts_of_marlin_that_16_bits_would_beat,
]
QUIET: list[Callable[[], Kineto]] = [
    marlin_on_one_token,
    experts_of_marlin_on_one_token,
    fp8_as_fast_as_it_should_be,
    fp8_that_is_slow_but_beats_16_bits,
    slow_in_16_bits,
    marlin_without_shapes,
    small_weights,
]
