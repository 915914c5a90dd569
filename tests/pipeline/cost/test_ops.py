"""Bytes and operations of ops, worked out by hand from their shapes."""

from __future__ import annotations

import pytest

from stepscope.pipeline.cost import Work
from stepscope.pipeline.cost.ops import Call, as_gemm, work_of

BF16, FP8, FP32, INT64 = "BFloat16", "Float8_e4m3fn", "Float", "Long"
GATHER = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"


@pytest.mark.parametrize(
    ("op", "shapes", "dtypes", "size", "flops"),
    [
        # [1, 6144] × [6144, 2048]: (6144 + 12,582,912 + 2048) × 2 B, and 2 × 6144 × 2048 operations
        ("aten::mm", [[1, 6144], [6144, 2048]], [BF16, BF16], 25_182_208, 25_165_824),
        # 8 heads of [1, 192] × [192, 512]: 8 × (192 + 98,304 + 512) × 2 B
        ("aten::bmm", [[8, 1, 192], [8, 192, 512]], [BF16, BF16], 1_584_128, 1_572_864),
        # a bias of 4 on [2, 3] × [3, 4]: (6 + 12 + 8 + 4) × 4 B
        ("aten::addmm", [[4], [2, 3], [3, 4]], [FP32, FP32, FP32], 120, 48),
        # [4, 128] × [128, 256] in one byte each, 4 × 256 results of two, two scales of four
        (
            "aten::_scaled_mm",
            [[4, 128], [128, 256], [1], [1]],
            [FP8, FP8, FP32, FP32],
            512 + 32_768 + 2048 + 8,
            262_144,
        ),
        ("_C::cutlass_scaled_mm", [[4, 8], [4, 16], [16, 8], [1], [1]], [BF16, FP8, FP8, FP32, FP32], 264, 1024),
        # read 6144 twice and write once, two bytes each
        ("aten::add", [[1, 6144], [1, 6144], []], [BF16, BF16, None], 36_864, 6144),
        # a column is read once and used for all
        ("aten::mul", [[8, 100], [8, 1]], [BF16, FP32], 1600 + 32 + 3200, 800),
        ("aten::eq", [[10], [10]], [INT64, INT64], 170, 10),
        ("aten::silu", [[1, 256]], [BF16], 1024, 256),
        ("sgl_kernel::silu_and_mul", [[2, 256], [2, 512]], [BF16, BF16], 3072, 1024),
        ("aten::_softmax", [[1, 8, 1024], [], []], [FP32, None, None], 65_536, 8192),
        ("aten::sum", [[1, 8], [], [], []], [FP32, None, None, None], 32, 8),
        ("aten::topk", [[1, 256], [], [], [], []], [FP32, None, None, None, None], 1024, 256),
        ("aten::sort", [[1, 16], [], []], [FP32, None, None], 256, 0),
        ("aten::_fused_rms_norm", [[1, 6144], [], [6144], []], [BF16, None, BF16, None], 36_864, 24_576),
        ("sgl_kernel::rmsnorm", [[2, 8], [2, 8], [8]], [BF16, BF16, BF16], 80, 64),
        # x and residual read and written, the weight read
        ("sgl_kernel::fused_add_rmsnorm", [[2, 8], [2, 8], [8]], [BF16, BF16, BF16], 144, 80),
        ("aten::embedding", [[19360, 6144], [3]], [BF16, INT64], 24 + 2 * 3 * 12_288, 0),
        ("aten::gather", [[4, 9], [], [4, 2]], [FP32, None, INT64], 64 + 64, 0),
        ("aten::_index_put_impl_", [[495552, 1, 576], [], [576], [], []], [FP8, None, FP8, None, None], 1152, 0),
        # one query, 1024 keys, 4 heads on 2: q 4×64, k and v 2×1024×64, result 4×64, two bytes each
        (
            "aten::_scaled_dot_product_flash_attention",
            [[1, 4, 1, 64], [1, 2, 1024, 64], [1, 2, 1024, 64]],
            [BF16, BF16, BF16],
            2 * (256 + 2 * 131_072 + 256),
            2 * 4 * 1024 * 128,
        ),
        # as many queries as keys: at least the pairs on and below the diagonal, 3 of 4
        (
            "aten::_scaled_dot_product_flash_attention",
            [[1, 1, 2, 8], [1, 1, 2, 8], [1, 1, 2, 8]],
            [BF16, BF16, BF16],
            128,
            96,
        ),
    ],
)
def test_an_op_costs_its_operands_and_operations(
    op: str, shapes: list[list[int]], dtypes: list[str | None], size: int, flops: int
) -> None:
    work = work_of(Call(op, shapes, dtypes))
    assert work is not None
    assert (work.bytes, work.flops, work.avoidable_bytes) == (size, flops, 0)


@pytest.mark.parametrize(
    ("op", "shapes", "dtypes", "size"),
    [
        ("aten::copy_", [[495552, 1, 576], [495552, 1, 576], []], [BF16, FP8, None], 856_313_856),
        ("aten::copy_", [[10, 100], [1, 100], []], [FP32, FP32, None], 4400),
        ("aten::fill_", [[100], []], [BF16, None], 200),
        ("aten::clone", [[100], []], [BF16, None], 400),
    ],
)
def test_what_copies_move_is_avoidable(op: str, shapes: list[list[int]], dtypes: list[str | None], size: int) -> None:
    work = work_of(Call(op, shapes, dtypes))
    assert work is not None
    assert (work.bytes, work.avoidable_bytes) == (size, size)


def test_a_join_of_tensors_takes_the_size_of_an_element_from_its_kernel() -> None:
    kernel = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 3>"
    lists = {0: [[1, 8, 512], [1, 8, 64]]}
    assert work_of(Call("aten::cat", [[], []], [None, None], lists, kernel)) == Work(18_432, avoidable_bytes=18_432)
    assert work_of(Call("aten::cat", [[], []], [None, None], lists, "another_kernel")) is None


def test_rows_that_an_index_reads_are_told_by_a_kernel_with_a_block_a_row() -> None:
    call = Call("aten::index", [[495552, 1, 576], []], [FP8, None], {}, GATHER, (1024, 1, 1))
    assert work_of(call) == Work(1024 * (2 * 576 + 8))
    assert work_of(Call("aten::index", [[495552, 1, 576], []], [FP8, None], {}, "another", (1024, 1, 1))) is None


def test_a_gather_of_rows_reads_an_index_for_each() -> None:
    call = Call("aten::gather", [[100, 8], [], [3, 8]], [BF16, None, INT64], {}, GATHER, (3, 1, 1))
    assert work_of(call) == Work(3 * 8 + 2 * 3 * 8 * 2)


def test_fused_experts_read_those_that_are_hit() -> None:
    """One token hits 8 of 64 experts: an eighth of both weights, and 8 × 3 products of 6144 × 256."""
    shapes = [[1, 6144], [64, 512, 6144], [64, 6144, 256], [1, 8], [1, 8]]
    work = work_of(Call("sglang::inplace_fused_experts", shapes, [BF16, BF16, BF16, FP32, "Int"]))
    assert work is not None
    assert work.bytes == pytest.approx(8 * 3 * 256 * 6144 * 2 + 2 * 6144 * 2)
    assert work.flops == 2 * 8 * 3 * 256 * 6144


def test_two_tokens_are_expected_to_share_some_experts() -> None:
    """Each expert is missed by both with probability (7/8)²: 64 × (1 − 49/64) = 15 are hit, not 16."""
    shapes = [[2, 64], [64, 32, 64], [64, 64, 16], [2, 8], [2, 8]]
    work = work_of(Call("vllm::outplace_fused_experts", shapes, [BF16, BF16, BF16, FP32, "Int"]))
    assert work is not None
    assert work.bytes == pytest.approx(15 * (32 * 64 + 64 * 16) * 2 + 2 * 128 * 2)


@pytest.mark.parametrize(
    ("op", "shapes", "dtypes"),
    [
        ("aten::unheard_of", [[1, 2]], [BF16]),
        ("aten::mm", [[1, 2], [3, 4]], [BF16, BF16]),  # 2 is not 3
        ("aten::mm", [[1, 2]], [BF16]),
        ("aten::mm", [], []),
        ("aten::bmm", [[2, 1, 2], [3, 2, 4]], [BF16, BF16]),
        ("aten::add", [[3], [4]], [BF16, BF16]),
        ("aten::add", [[]], [None]),
        ("aten::copy_", [[4]], [BF16]),
        ("aten::embedding", [[4], [4]], [BF16, INT64]),
        ("sglang::inplace_fused_experts", [[1, 4], [2, 4, 4], [2, 4, 2], [1, 3], [1, 3]], [BF16] * 5),  # 3 of 2
        ("aten::_fused_rms_norm", [[]], [None]),
        ("sgl_kernel::silu_and_mul", [[2, 256], [2, 500]], [BF16, BF16]),
    ],
)
def test_inputs_that_do_not_fit_the_op_cost_nothing_known(
    op: str, shapes: list[list[int]], dtypes: list[str | None]
) -> None:
    assert work_of(Call(op, shapes, dtypes)) is None


def test_the_weight_of_a_multiplication_is_stored_output_first() -> None:
    plain = as_gemm(Call("aten::mm", [[1, 6144], [6144, 2048]], [BF16, BF16]))
    by_head = as_gemm(Call("aten::bmm", [[8, 1, 192], [8, 192, 512]], [BF16, BF16]))
    assert plain is not None
    assert by_head is not None
    assert plain.weight_shape == (2048, 6144)
    assert by_head.weight_shape == (8, 192, 512)
