"""Traces on which `kv-pool-cast` must speak, and look-alikes on which it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.decode_steps import Work, copied, eager, graphed
from tests.kernel_names import ADD, ATTENTION, COPY_BF16, FP8_WRITE, GATHER, GEMM, TO_BF16, TO_FLOAT, direct_copy

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kineto import Kineto

LAYERS = 78
FP8, BF16 = "c10::Float8_e4m3fn", "c10::BFloat16"
POOL = (65_536, 1, 576)
POOL_BLOCKS = 73_728  # 65,536 × 576 elements in blocks of 512
NO_ROWS_BLOCKS = 72_001  # 36,864,001 to 36,864,512 elements: 64,000 rows are fewer, 64,001 are more
WRITE = Work(FP8_WRITE, 2)
POOL_CAST = copied(TO_BF16, 120, POOL, FP8, BF16)
GRAPH_CAST = Work(TO_BF16, 120, grid=(POOL_BLOCKS, 1, 1))
REST = (Work(GEMM, 8, "aten::mm", [[1, 6144], [6144, 2112]], [BF16, BF16]), Work(ATTENTION, 12), Work(ADD, 3))


def whole_pool_cast_in_every_layer() -> Kineto:
    return eager([[WRITE, POOL_CAST, *REST] * LAYERS] * 3)


def paged_pool() -> Kineto:
    return eager([[WRITE, copied(TO_BF16, 120, (1024, 64, 1, 576), FP8, BF16), *REST] * LAYERS] * 3)


def whole_pool_cast_in_a_graph() -> Kineto:
    return graphed([[WRITE, GRAPH_CAST, *REST] * LAYERS] * 3)


def whole_pool_cast_in_a_graph_by_blocks_that_hold_two_rows() -> Kineto:
    cast = Work(direct_copy("c10::BFloat16", elements_a_thread=8), 120, grid=(POOL_BLOCKS // 2, 1, 1))
    return graphed([[WRITE, cast, *REST] * LAYERS] * 3)


def pool_whose_last_block_is_partly_filled() -> Kineto:
    cast = Work(TO_BF16, 1750, grid=(1_125_002, 1, 1))  # 1,000,001 × 576 = 576,000,576 elements
    return graphed([[WRITE, cast, *REST] * LAYERS] * 3)


def idle_batch_that_casts_as_much() -> Kineto:
    return eager([[WRITE, POOL_CAST, Work(ADD, 2)] * LAYERS] * 3, annotation="step[IDLE bs=1]")


def pool_cast_during_prefill() -> Kineto:
    return eager([[WRITE, POOL_CAST, *REST] * LAYERS] * 3, annotation="step[EXTEND bs=1 toks=1000]")


def cast_of_live_tokens_only() -> Kineto:
    live = copied(TO_BF16, 8, (16, 1024, 1, 576), FP8, BF16)
    return eager([[WRITE, live, *REST] * LAYERS] * 3, annotation="step[DECODE bs=16]")


def gather_then_cast() -> Kineto:
    gather = Work(GATHER, 12, "aten::index", [POOL, [16_384]], [FP8, "long int"], grid=(16_384, 1, 1))
    cast = copied(TO_BF16, 30, (16_384, 1, 576), FP8, BF16)
    return eager([[WRITE, gather, cast, *REST] * LAYERS] * 3, annotation="step[DECODE bs=16]")


def gather_then_cast_in_a_graph() -> Kineto:
    gather = Work(GATHER, 3, grid=(1024, 1, 1))
    return graphed([[WRITE, gather, Work(TO_BF16, 2, grid=(1152, 1, 1)), *REST] * LAYERS] * 3)


def prefix_gathered_and_cast_before_prefill() -> Kineto:
    gather = Work(GATHER, 12, "aten::index_select", [POOL, [], [30_000]], [FP8, "Scalar", "int"], grid=(30_000, 1, 1))
    cast = copied(TO_BF16, 60, (30_000, 1, 576), FP8, BF16)
    return eager([[WRITE, gather, cast, *REST] * LAYERS] * 3, annotation="step[EXTEND bs=1 toks=1000]")


def large_gather_then_cast_in_a_graph() -> Kineto:
    gather = Work(GATHER, 90, grid=(65_536, 1, 1))
    return graphed([[WRITE, gather, GRAPH_CAST, *REST] * LAYERS] * 3, annotation="step[DECODE bs=16]")


def small_pool() -> Kineto:
    return eager([[WRITE, copied(TO_BF16, 4, (2048, 1, 576), FP8, BF16), *REST] * LAYERS] * 3)


def one_off_cast_at_start() -> Kineto:
    later = [WRITE, *REST] * LAYERS
    return eager([[POOL_CAST, *later], later, later])


def one_off_cast_at_start_of_a_graph_run() -> Kineto:
    later = [WRITE, *REST] * LAYERS
    return graphed([[GRAPH_CAST, *later], later, later])


def copy_of_the_pool_in_its_own_type() -> Kineto:
    return eager([[WRITE, copied(COPY_BF16, 120, POOL, BF16, BF16), *REST] * LAYERS] * 3)


def copy_without_a_cast_in_a_graph() -> Kineto:
    return graphed([[WRITE, Work(COPY_BF16, 120, grid=(POOL_BLOCKS, 1, 1)), *REST] * LAYERS] * 3)


def cast_in_a_graph_of_what_is_no_whole_number_of_rows() -> Kineto:
    return graphed([[WRITE, Work(TO_BF16, 120, grid=(NO_ROWS_BLOCKS, 1, 1)), *REST] * LAYERS] * 3)


def scores_cast_to_float32_in_a_graph() -> Kineto:
    return graphed([[WRITE, Work(TO_FLOAT, 120, grid=(POOL_BLOCKS, 1, 1)), *REST] * LAYERS] * 3)


def cast_in_a_graph_once_a_step() -> Kineto:
    return graphed([[GRAPH_CAST, *([WRITE, *REST] * LAYERS)]] * 3)


def write_of_new_tokens_into_the_pool() -> Kineto:
    write = copied(FP8_WRITE, 2, (1, 1, 576), BF16, FP8)
    return eager([[write, *REST] * LAYERS] * 3)


FIRING: list[Callable[[], Kineto]] = [
    whole_pool_cast_in_every_layer,
    paged_pool,
    whole_pool_cast_in_a_graph,
    whole_pool_cast_in_a_graph_by_blocks_that_hold_two_rows,
    pool_whose_last_block_is_partly_filled,
    idle_batch_that_casts_as_much,
    pool_cast_during_prefill,
]
QUIET: list[Callable[[], Kineto]] = [
    cast_of_live_tokens_only,
    gather_then_cast,
    gather_then_cast_in_a_graph,
    prefix_gathered_and_cast_before_prefill,
    large_gather_then_cast_in_a_graph,
    small_pool,
    one_off_cast_at_start,
    one_off_cast_at_start_of_a_graph_run,
    copy_of_the_pool_in_its_own_type,
    copy_without_a_cast_in_a_graph,
    cast_in_a_graph_of_what_is_no_whole_number_of_rows,
    scores_cast_to_float32_in_a_graph,
    cast_in_a_graph_once_a_step,
    write_of_new_tokens_into_the_pool,
]
