"""Traces on which `redundant-cast` must speak, and look-alikes on which it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.decode_steps import Work, copied, eager, graphed
from tests.kernel_names import ADD, ATTENTION, BF16_FROM_FLOAT, COPY_BF16, GEMM, NORM, TO_BF16, TO_FLOAT, TO_LONG

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kineto import Kineto

LAYERS = 10
FP8, BF16, FLOAT = "c10::Float8_e4m3fn", "c10::BFloat16", "float"
REST = (Work(NORM, 3), Work(ATTENTION, 12), Work(ADD, 3))


def matmul(rows: int, hidden: int = 6144) -> Work:
    return Work(GEMM, 8, "aten::mm", [[rows, hidden], [hidden, 2048]], [BF16, BF16])


def buffer_that_is_no_weight_cast_in_every_layer() -> Kineto:
    cast = copied(TO_BF16, 40, (4096, 3000), FLOAT, BF16)
    return eager([[cast, matmul(1), *REST] * LAYERS] * 3)


def buffer_cast_once_a_step() -> Kineto:
    cast = copied(TO_BF16, 400, (151_936, 1024), FLOAT, BF16)
    return eager([[cast, matmul(1), *REST]] * 3)


def known_weight_cast_in_a_graph_long_before_its_gemm() -> Kineto:
    cast = Work(TO_BF16, 40, grid=(24_576, 1, 1))  # 12,582,912 elements: o_proj of GLM-5 at TP-8
    return graphed([[cast, *REST, matmul(1)] * LAYERS] * 3)


def activations_that_follow_the_tokens_of_a_prefill() -> Kineto:
    casts = [copied(BF16_FROM_FLOAT, 60, (4096, 6144), FLOAT, BF16), copied(TO_FLOAT, 60, (4096, 6144), BF16, FLOAT)]
    return eager([[*casts, matmul(4096), *REST] * LAYERS] * 3, annotation="step[EXTEND bs=1 toks=4096]")


def activations_that_follow_the_batch() -> Kineto:
    cast = copied(TO_FLOAT, 60, (256, 64, 512), BF16, FLOAT)
    return eager([[cast, *REST] * LAYERS] * 3, annotation="step[DECODE bs=256]")


def activations_of_every_tokens_eight_experts() -> Kineto:
    cast = copied(BF16_FROM_FLOAT, 60, (8 * 1000, 2048), FLOAT, BF16)
    return eager([[cast, matmul(1000), *REST] * LAYERS] * 3, annotation="step[EXTEND bs=1 toks=1000]")


def scores_cast_around_a_softmax() -> Kineto:
    up = copied(TO_FLOAT, 60, (1, 16, 2000, 2000), BF16, FLOAT)
    down = copied(BF16_FROM_FLOAT, 60, (1, 16, 2000, 2000), FLOAT, BF16)
    return eager([[up, down, matmul(2000), *REST] * LAYERS] * 3, annotation="ProfilerStep#1")


def casts_around_norms() -> Kineto:
    up, down = copied(TO_FLOAT, 20, (1024, 4096), BF16, FLOAT), copied(BF16_FROM_FLOAT, 20, (1024, 4096), FLOAT, BF16)
    step = [up, Work(NORM, 5), down, matmul(1024, 4096), *REST] * LAYERS
    return eager([step] * 3, annotation="step[EXTEND bs=1 toks=1024]")


def casts_of_indices() -> Kineto:
    cast = copied(TO_LONG, 40, (4096, 3000), "int", "long int")
    return eager([[cast, matmul(1), *REST] * LAYERS] * 3)


def casts_of_masks() -> Kineto:
    cast = copied(TO_FLOAT, 40, (4096, 3000), "bool", FLOAT)
    return eager([[cast, matmul(1), *REST] * LAYERS] * 3)


def small_casts() -> Kineto:
    cast = copied(TO_BF16, 2, (128, 2048), FLOAT, BF16)  # 1.6 MB
    return eager([[cast, matmul(1), *REST] * LAYERS] * 3)


def first_use_that_is_cached() -> Kineto:
    cast = copied(TO_BF16, 40, (6144, 2048), FP8, BF16)
    later = [matmul(1), *REST] * LAYERS
    return eager([[*([cast] * LAYERS), *later], later, later])


def copies_that_are_no_casts() -> Kineto:
    copy = copied(COPY_BF16, 40, (6144, 2048), BF16, BF16)
    return eager([[copy, matmul(1), *REST] * LAYERS] * 3)


def unknown_tensor_cast_in_a_graph() -> Kineto:
    cast = Work(TO_BF16, 40, grid=(24_000, 1, 1))
    return graphed([[cast, matmul(1), *REST] * LAYERS] * 3)


def weight_cast_right_before_its_gemm() -> Kineto:
    cast = copied(TO_BF16, 40, (6144, 2048), FP8, BF16)  # a weight that is rebuilt: one cause, one finding
    return eager([[cast, matmul(1), *REST] * LAYERS] * 3)


def casts_of_the_pool() -> Kineto:
    cast = copied(TO_BF16, 120, (65_536, 1, 576), FP8, BF16)
    return eager([[cast, matmul(1), *REST] * LAYERS] * 3)


FIRING: list[Callable[[], Kineto]] = [
    buffer_that_is_no_weight_cast_in_every_layer,
    buffer_cast_once_a_step,
    known_weight_cast_in_a_graph_long_before_its_gemm,
]
QUIET: list[Callable[[], Kineto]] = [
    activations_that_follow_the_tokens_of_a_prefill,
    activations_that_follow_the_batch,
    activations_of_every_tokens_eight_experts,
    scores_cast_around_a_softmax,
    casts_around_norms,
    casts_of_indices,
    casts_of_masks,
    small_casts,
    first_use_that_is_cached,
    copies_that_are_no_casts,
    unknown_tensor_cast_in_a_graph,
    weight_cast_right_before_its_gemm,
    casts_of_the_pool,
]
