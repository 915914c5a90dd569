"""Traces on which `unfused-elementwise` must speak, and look-alikes on which it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.decode_steps import Work, copied, eager, graphed
from tests.kernel_names import ADD, ATTENTION, BF16_FROM_FLOAT, FLOAT_FROM_BF16, GEMM, NORM, TO_FLOAT
from tests.plain_op_names import (
    ADD_FLOAT,
    BACKWARD,
    CONCATENATE,
    MASK,
    MEAN,
    MULTIPLY,
    NEGATE,
    QUANTISE,
    ROPE,
    RSQRT,
    SOFTMAX,
    SQUARE,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kineto import Kineto

LAYERS = 20
MATMUL, ATTEND = Work(GEMM, 12, "aten::mm"), Work(ATTENTION, 15, "attend")
ROOT_MEAN_SQUARE = [
    Work(FLOAT_FROM_BF16, 2, "aten::copy_"),
    Work(SQUARE, 2, "aten::pow"),
    Work(MEAN, 3, "aten::mean"),
    Work(ADD_FLOAT, 1.5, "aten::add"),
    Work(RSQRT, 1.5, "aten::rsqrt"),
    Work(MULTIPLY, 2, "aten::mul"),
    Work(BF16_FROM_FLOAT, 2, "aten::copy_"),
    Work(MULTIPLY, 2, "aten::mul"),
]
ROTATION = [
    Work(MULTIPLY, 2, "aten::mul"),
    Work(NEGATE, 2, "aten::neg"),
    Work(CONCATENATE, 2, "aten::cat"),
    Work(MULTIPLY, 2, "aten::mul"),
    Work(ADD, 2, "aten::add"),
]


def norms_written_out() -> Kineto:
    return eager([[*ROOT_MEAN_SQUARE, MATMUL, ATTEND, MATMUL] * LAYERS] * 3)


def norms_written_out_in_a_graph() -> Kineto:
    return graphed([[*ROOT_MEAN_SQUARE, MATMUL, ATTEND, MATMUL] * LAYERS] * 3)


def norms_written_out_in_a_prefill() -> Kineto:
    norm = [work._replace(us=20 * work.us) for work in ROOT_MEAN_SQUARE]
    matmul = MATMUL._replace(us=200)
    return eager([[*norm, matmul, ATTEND, matmul] * LAYERS] * 3, annotation="step[EXTEND bs=1 toks=4096]")


def rotations_of_queries_and_keys_written_out() -> Kineto:
    return graphed([[MATMUL, *ROTATION * 2, ATTEND, MATMUL] * LAYERS] * 3)


def quantisation_behind_each_norm() -> Kineto:
    return graphed([[Work(NORM, 3), Work(QUANTISE, 3), MATMUL, ATTEND, MATMUL] * LAYERS] * 3)


def fused_norms_beside_a_sum() -> Kineto:
    return graphed([[Work(ADD, 2), Work(NORM, 3), MATMUL, Work(ROPE, 3), ATTEND, MATMUL] * LAYERS] * 3)


def norms_that_quantise_themselves() -> Kineto:
    fused = Work("void vllm::rms_norm_dynamic_per_token_quant_kernel<c10::BFloat16, c10::Float8_e4m3fn, true>", 4)
    return graphed([[fused, MATMUL, ATTEND, MATMUL] * LAYERS] * 3)


def weights_and_cache_that_are_dequantised() -> Kineto:
    weights, cache = Work("void kDequantizeBlockwise<__half, 512>", 6), Work("void dequantize_k_cache_kernel(void*)", 6)
    return graphed([[Work(ADD, 3), weights, MATMUL, Work(ADD, 3), cache, ATTEND] * LAYERS] * 3)


def softmax_with_its_masks_and_casts() -> Kineto:
    scores = [Work(MULTIPLY, 3), copied(TO_FLOAT, 3, (1, 8, 1024), "c10::BFloat16", "float"), Work(MASK, 3)]
    weights = [Work(SOFTMAX, 5), Work(BF16_FROM_FLOAT, 3), Work(MULTIPLY, 3)]
    return graphed([[MATMUL, *scores, *weights, MATMUL] * LAYERS] * 3)


def long_chain_that_runs_once_a_step() -> Kineto:
    return graphed([[*[MATMUL, ATTEND, MATMUL] * LAYERS, *ROOT_MEAN_SQUARE * 2]] * 3)


def pieces_that_other_work_stands_between() -> Kineto:
    return graphed([[*ROOT_MEAN_SQUARE[:4], MATMUL, *ROOT_MEAN_SQUARE[4:], MATMUL, ATTEND] * LAYERS] * 3)


def copies_alone() -> Kineto:
    return graphed([[*[Work(CONCATENATE, 3)] * 8, MATMUL, ATTEND, MATMUL] * LAYERS] * 3)


def training() -> Kineto:
    backward = Work(BACKWARD, 3, "aten::silu_backward")
    return eager([[*ROOT_MEAN_SQUARE, MATMUL, backward, MATMUL] * LAYERS] * 3, annotation="ProfilerStep#1")


def little_of_a_long_step() -> Kineto:
    matmul = MATMUL._replace(us=900)
    return graphed([[*ROOT_MEAN_SQUARE, matmul, matmul, ATTEND] * LAYERS] * 3)


FIRING: list[Callable[[], Kineto]] = [
    norms_written_out,
    norms_written_out_in_a_graph,
    norms_written_out_in_a_prefill,
    rotations_of_queries_and_keys_written_out,
    quantisation_behind_each_norm,
]
QUIET: list[Callable[[], Kineto]] = [
    fused_norms_beside_a_sum,
    norms_that_quantise_themselves,
    weights_and_cache_that_are_dequantised,
    softmax_with_its_masks_and_casts,
    long_chain_that_runs_once_a_step,
    pieces_that_other_work_stands_between,
    copies_alone,
    training,
    little_of_a_long_step,
]
