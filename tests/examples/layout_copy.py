"""Traces on which `layout-copy` must speak, and look-alikes on which it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.decode_steps import Work, copied, eager, graphed
from tests.kernel_names import ADD, ATTENTION, COPY_BF16, GEMM, NORM, OF_CLASS, STRIDED_COPY, TO_BF16
from tests.kineto import Kineto

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS = 12
FP8, BF16 = "c10::Float8_e4m3fn", "c10::BFloat16"
MATMUL = Work(GEMM, 8, "aten::mm", [[16, 6144], [6144, 2048]], [BF16, BF16])
REST = (MATMUL, Work(NORM, 3), Work(ATTENTION, 12), Work(ADD, 3))
BY_HEAD = copied(STRIDED_COPY, 2.4, (16, 8, 512), BF16, BF16)
BATCH = "step[DECODE bs=16]"
(CONCATENATION,) = (name for name in OF_CLASS["copy"] if "CatArrayBatchedCopy_contig" in name)
(TRANSPOSE,) = (name for name in OF_CLASS["copy"] if name.startswith("batched_transpose"))
(CLONE,) = (name for name in OF_CLASS["copy"] if "clone" in name)


def copies_around_every_product() -> Kineto:
    return eager([[BY_HEAD, MATMUL, BY_HEAD, *REST] * LAYERS] * 3, annotation=BATCH)


def copies_around_every_product_in_a_graph() -> Kineto:
    copy = Work(STRIDED_COPY, 2.4, grid=(128, 1, 1))
    return graphed([[copy, MATMUL, copy, *REST] * LAYERS] * 3, annotation=BATCH)


def compiled_copies() -> Kineto:
    return graphed([[Work(CLONE, 2.4), *REST] * LAYERS] * 3, annotation=BATCH)


def copies_in_a_prefill() -> Kineto:
    copy = copied(STRIDED_COPY, 30, (4096, 8, 512), BF16, BF16)
    matmul = Work(GEMM, 90, "aten::mm", [[4096, 6144], [6144, 2048]], [BF16, BF16])
    return eager([[copy, matmul, Work(ATTENTION, 120)] * LAYERS] * 3, annotation="step[EXTEND bs=1 toks=4096]")


def copies_beside_other_work() -> Kineto:
    """93 copies on a stream of their own, hidden behind the step's other work."""
    trace = Kineto()
    for begin in range(10, 10 + 4 * 8_400, 8_400):
        trace.annotation(BATCH, begin - 1, 8_390)
        end = trace.replay([(ATTENTION, 90.0, (132, 1, 1))] * 93, at=begin)
        graph = trace.launch(begin + 51, 2, name="cudaGraphLaunch")
        for number in range(93):
            trace.kernel(STRIDED_COPY, begin + 100 + 90 * number, 5, correlation=graph, stream=8, grid=(128, 1, 1))
        trace.launch(begin + 60, end + 5 - begin - 60, name="cudaStreamSynchronize")
    return trace


def few_copies_a_step() -> Kineto:
    return eager([[*[BY_HEAD] * 7, *REST * LAYERS]] * 3, annotation=BATCH)


def copies_that_hardly_take_time() -> Kineto:
    return graphed([[BY_HEAD, Work(ATTENTION, 600)] * LAYERS] * 3, annotation=BATCH)


def casts_and_dense_copies() -> Kineto:
    parts = [copied(TO_BF16, 2.4, (16, 8, 512), FP8, BF16), copied(COPY_BF16, 2.4, (16, 8, 512), BF16, BF16)]
    return eager([[*parts, *REST] * LAYERS] * 3, annotation=BATCH)


def strided_casts() -> Kineto:
    return eager([[copied(STRIDED_COPY, 2.4, (16, 8, 512), FP8, BF16), *REST] * LAYERS] * 3, annotation=BATCH)


def concatenations_and_a_librarys_transposes() -> Kineto:
    return graphed([[Work(CONCATENATION, 2.4), Work(TRANSPOSE, 2.4), *REST] * LAYERS] * 3, annotation=BATCH)


def a_weight_transposed() -> Kineto:
    return eager([[copied(STRIDED_COPY, 25, (2048, 6144), BF16, BF16), *REST] * LAYERS] * 3, annotation=BATCH)


def training() -> Kineto:
    backward = Work("flash_bwd_kernel", 30, "autograd::engine::evaluate_function: MmBackward0")
    return eager([[BY_HEAD, backward, *REST] * LAYERS] * 3, annotation="ProfilerStep#1")


FIRING: list[Callable[[], Kineto]] = [
    copies_around_every_product,
    copies_around_every_product_in_a_graph,
    compiled_copies,
    copies_in_a_prefill,
]
QUIET: list[Callable[[], Kineto]] = [
    copies_beside_other_work,
    few_copies_a_step,
    copies_that_hardly_take_time,
    casts_and_dense_copies,
    strided_casts,
    concatenations_and_a_librarys_transposes,
    a_weight_transposed,
    training,
]
