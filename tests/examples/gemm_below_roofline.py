"""Traces on which `gemm-below-roofline` must speak, and look-alikes on which it must not.

An H200 reads 4,300 GB/s and multiplies 790 TFLOPS; it has 132 multiprocessors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.decode_steps import STEP, Work, eager, graphed
from tests.kernel_names import ADD, ATTENTION, GEMM, NORM
from tests.kineto import LAUNCH_US, Kineto

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BF16 = "c10::BFloat16"
H200 = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
REST = (Work(NORM, 8), Work(ATTENTION, 20), Work(ADD, 8))
SUM = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>"
EXPERTS = "fused_moe_kernel"
EXPERT_TYPES = [BF16, BF16, BF16, "float", "int"]


def matmul(us: float, rows: int = 1, out: int = 2048, *, blocks: int = 64, dtype: str = BF16) -> Work:
    """Return [rows, 6144] × [6144, out]; as it stands 25.2 MB, 5.9 µs at the memory's rate."""
    return Work(GEMM, us, "aten::mm", [[rows, 6144], [6144, out]], [dtype, dtype], (blocks, 1, 1))


def experts(us: float, tokens: int = 1) -> Work:
    """Return w13 and w2 of 8 of 64 experts a token: 75.5 MB for one token, 17.6 µs at the memory's rate."""
    shapes = [[tokens, 6144], [64, 512, 6144], [64, 6144, 256], [tokens, 8], [tokens, 8]]
    return Work(EXPERTS, us, "sglang::inplace_fused_experts", shapes, EXPERT_TYPES, (128, 1, 1))


def on_h200(trace: Kineto) -> Kineto:
    """Return a trace with what Kineto records of an H200."""
    trace.header["deviceProperties"] = [H200]
    return trace


def decoding(*layer: Work, annotation: str = STEP) -> Kineto:
    return on_h200(eager([[*layer, *REST] * 10] * 3, annotation=annotation))


def split(us: float, sum_us: float, dims: Sequence[Sequence[int]]) -> Kineto:
    """Return steps in which each op launches a multiplication of a split K, and what adds its parts up."""
    trace, at = on_h200(Kineto()), 10.0
    for _ in range(3):
        begin = at
        for _ in range(10):
            trace.op("aten::mm", at, 2 * LAUNCH_US + 3, dims=dims, types=[BF16, BF16])
            for kernel, duration in ((GEMM, us), (SUM, sum_us)):
                at += 1
                trace.call(kernel, at=at, duration=duration, grid=(264, 1, 1))
                at += LAUNCH_US
            trace.call(ATTENTION, at=at + 2, duration=20)
            at += 8
        trace.annotation(STEP, begin - 1, at - begin)
        at += 2
    return trace


def weight_read_by_few_blocks() -> Kineto:
    return decoding(matmul(30.0))


def experts_of_one_token_at_a_third_of_the_rate() -> Kineto:
    return decoding(experts(51.0))


def split_of_which_the_sum_takes_longer() -> Kineto:
    return split(14.0, 18.0, [[1, 6144], [6144, 2048]])


def prompt_at_a_fifth_of_the_operations() -> Kineto:
    """1,024 tokens through [6144, 6144]: 77.3 GFLOP, 98 µs."""
    slow = matmul(490.0, 1024, 6144, blocks=2048)
    return decoding(slow, annotation="step[EXTEND bs=1 toks=1024]")


def small_weight() -> Kineto:
    """3.1 MB, 0.73 µs: 5.5 µs are healthy; 2.2 MB, no more than a kernel's least time: so are 8 µs."""
    return decoding(matmul(5.5, out=256), matmul(8.0, out=180))


def weight_read_as_fast_as_others_are() -> Kineto:
    """5.9 µs at the memory's rate."""
    return decoding(matmul(11.0))


def experts_of_a_batch() -> Kineto:
    return decoding(experts(300.0, 16), annotation="step[DECODE bs=16]")


def products_by_head() -> Kineto:
    keys = Work(GEMM, 90.0, "aten::bmm", [[16, 1, 576], [16, 576, 4096]], [BF16, BF16])
    return decoding(keys)


def multiplication_in_full_precision() -> Kineto:
    return decoding(matmul(60.0, dtype="float"))


def kernels_without_a_shape() -> Kineto:
    return on_h200(graphed([[Work(GEMM, 30.0, grid=(64, 1, 1)), *REST] * 10] * 3))


def multiplication_beside_another_stream() -> Kineto:
    """Two streams at a time, each of which has half of the memory's rate; by itself a kernel runs for 2 µs."""
    trace, at = on_h200(Kineto()), 10.0
    dims = [[1, 6144], [6144, 2048]]
    for _ in range(3):
        begin = at
        for _ in range(10):
            trace.call(GEMM, at=at, duration=24.0, op="aten::mm", dims=dims, types=[BF16, BF16])
            end = trace.call(ATTENTION, at=at + 8, duration=22.0, stream=8, tid=2)
            at = end + 4
        trace.annotation(STEP, begin - 2, at - begin - 1)
    return trace


def training() -> Kineto:
    backward = Work("flash_bwd_kernel", 30, "autograd::engine::evaluate_function: MmBackward0")
    return decoding(matmul(60.0), backward, annotation="ProfilerStep#1")


def one_slow_head_of_a_long_step() -> Kineto:
    return on_h200(eager([[matmul(20.0), *REST * 60]] * 3))


FIRING: list[Callable[[], Kineto]] = [
    experts_of_one_token_at_a_third_of_the_rate,
    weight_read_by_few_blocks,
    split_of_which_the_sum_takes_longer,
    prompt_at_a_fifth_of_the_operations,
]
QUIET: list[Callable[[], Kineto]] = [
    small_weight,
    weight_read_as_fast_as_others_are,
    experts_of_a_batch,
    products_by_head,
    multiplication_in_full_precision,
    kernels_without_a_shape,
    multiplication_beside_another_stream,
    training,
    one_slow_head_of_a_long_step,
]
