"""Traces on which `fill-in-step` must speak, and look-alikes on which it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.decode_steps import STEP, Work, eager, graphed
from tests.kernel_names import ADD, ATTENTION, GEMM, NORM, OF_CLASS
from tests.kineto import Kineto

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS = 12
BF16 = "c10::BFloat16"
(FILL,) = (name for name in OF_CLASS["fill"] if "FillFunctor" in name)
(ROCM_MEMSET,) = (name for name in OF_CLASS["fill"] if "fillBuffer" in name)
SCATTER_ADD = "void at::native::_scatter_gather_elementwise_kernel<128, 8, ReduceAdd>"
REST = (Work(GEMM, 8, "aten::mm", [[1, 6144], [6144, 2048]], [BF16, BF16]), Work(NORM, 3), Work(ADD, 3))
ZEROS = Work(FILL, 1.2, "aten::fill_", [[1, 8, 576], []], [BF16, "Scalar"])
ATTEND = Work(ATTENTION, 12)


def memset_in_every_layer(op: str | None, *, kernel: str | None = None) -> Kineto:
    """Steps of 12 layers, each of which begins with a memset that an op asks for: `kernel`'s, or the runtime's own."""
    trace = Kineto()
    at = 10.0
    for _ in range(3):
        begin = at
        for _ in range(LAYERS):
            if kernel is not None:
                trace.call(kernel, at=at, duration=1.2, op=op)
            else:
                if op is not None:
                    trace.op(op, at - 1, 6)
                correlation = trace.launch(at, name="cudaMemsetAsync")
                trace.memset(at + 6, 1.2, size=9216, correlation=correlation)
            trace.call(GEMM, at=at + 7, duration=8, op="aten::mm")
            trace.call(ATTENTION, at=at + 14, duration=12)
            at += 30
        trace.annotation(STEP, begin - 2, at - begin - 2)
    return trace


def outputs_allocated_as_zeros() -> Kineto:
    return eager([[ZEROS, ATTEND, *REST] * LAYERS] * 3)


def outputs_allocated_as_zeros_in_a_graph() -> Kineto:
    return graphed([[Work(FILL, 1.2), ATTEND, *REST] * LAYERS] * 3)


def outputs_cleared_by_memsets() -> Kineto:
    return memset_in_every_layer("aten::zero_")


def a_buffer_that_is_added_to() -> Kineto:
    return graphed([[Work(FILL, 1.2), Work(SCATTER_ADD, 4), ATTEND, *REST] * LAYERS] * 3)


def a_buffer_that_index_add_adds_to() -> Kineto:
    adds = "void at::native::(anonymous namespace)::indexFuncSmallIndex<float, long, unsigned int, 2, 2, -2, true, Add>"
    return graphed([[Work(FILL, 1.2), Work(adds, 4), ATTEND, *REST] * LAYERS] * 3)


def counters_that_a_gemm_clears() -> Kineto:
    return memset_in_every_layer("aten::mm")


def counters_that_a_gemm_clears_on_rocm() -> Kineto:
    return memset_in_every_layer("aten::mm", kernel=ROCM_MEMSET)


def memsets_of_nobody() -> Kineto:
    return memset_in_every_layer(None)


def few_fills_a_step() -> Kineto:
    return eager([[*[ZEROS] * 7, *[*REST, ATTEND] * LAYERS]] * 3)


def fills_that_hardly_take_time() -> Kineto:
    return graphed([[Work(FILL, 1.2), Work(ATTENTION, 300)] * LAYERS] * 3)


def fills_at_first_use() -> Kineto:
    later = [*REST, ATTEND] * LAYERS
    return eager([[*[ZEROS] * LAYERS, *later], later, later])


def masks_filled_by_condition() -> Kineto:
    (masked,) = (name for name in OF_CLASS["elementwise"] if "masked_fill" in name)
    return graphed([[Work(masked, 1.2), ATTEND, *REST] * LAYERS] * 3)


def training() -> Kineto:
    backward = Work("flash_bwd_kernel", 30, "autograd::engine::evaluate_function: MmBackward0")
    return eager([[ZEROS, ATTEND, backward, *REST] * LAYERS] * 3, annotation="ProfilerStep#1")


FIRING: list[Callable[[], Kineto]] = [
    outputs_allocated_as_zeros,
    outputs_allocated_as_zeros_in_a_graph,
    outputs_cleared_by_memsets,
]
QUIET: list[Callable[[], Kineto]] = [
    a_buffer_that_is_added_to,
    a_buffer_that_index_add_adds_to,
    counters_that_a_gemm_clears,
    counters_that_a_gemm_clears_on_rocm,
    memsets_of_nobody,
    few_fills_a_step,
    fills_that_hardly_take_time,
    fills_at_first_use,
    masks_filled_by_condition,
    training,
]
