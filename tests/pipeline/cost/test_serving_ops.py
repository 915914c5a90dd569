"""Bytes and operations of the small ops of serving, worked out by hand; several shapes are those of real traces."""

from __future__ import annotations

import pytest

from stepscope.pipeline.cost.ops import Call, work_of

BF16, FP8, FP32, INT, INT64, BYTE, BOOL = "BFloat16", "Float8_e4m3fn", "Float", "Int", "Long", "Byte", "Bool"


@pytest.mark.parametrize(
    ("op", "shapes", "dtypes", "size", "flops"),
    [
        # routing: scores in, 8 weights and ids out
        ("sgl_kernel::topk_softmax", [[1, 8], [1, 8], [1, 64], []], [FP32, INT, FP32, None], 32 + 32 + 256, 64),
        ("sglang::_jit_grouped_topk_op", [[1, 64], [64], [1, 8], [1, 8]], [FP32, FP32, FP32, INT], 576, 64),
        # 8 ids read and written sorted, whatever room there is
        (
            "sgl_kernel::moe_align_block_size",
            [[1, 8], [], [], [128], [8], [1], [66]],
            [INT, None, None] + [INT] * 4,
            64,
            0,
        ),
        ("sgl_kernel::moe_sum_reduce", [[1, 8, 6144], [1, 6144], []], [BF16, BF16, None], 110_592, 49_152),
        # two tokens to two experts each
        ("_moe_C::moe_permute", [[2, 16], [2, 2], [2, 2]], [BF16, INT, INT], 64 + 16 + 128, 0),
        ("_moe_C::moe_unpermute", [[8, 16], [2, 2], [4]], [BF16, FP32, INT], 3 * 64 + 16, 128),
        ("sgl_kernel::shuffle_rows", [[2, 16], [4], [4, 16]], [BF16, INT, BF16], 16 + 2 * 4 * 32, 0),
        # rope: 4096 + 512 values of 32 tokens, a row of 64 cosines and sines for each
        (
            "_C::rotary_embedding",
            [[32], [32, 4096], [32, 512], [], [131_072, 64], []],
            [INT64, BF16, BF16, None, BF16, None],
            256 + 32 * 128 + 2 * 32 * 4608 * 2,
            3 * 32 * 4608,
        ),
        # a half of each head of 128 is rotated, and there are no keys
        (
            "_C::rotary_embedding",
            [[2], [2, 4, 128], [], [], [16, 64], []],
            [INT64, BF16, None, None, FP32, None],
            16 + 2 * 256 + 2 * 2 * 4 * 64 * 2,
            3 * 2 * 4 * 64,
        ),
        (
            "sglang::apply_rope_inplace",
            [[1, 8, 64], [1, 1, 64], [131_072, 64], [1], [], []],
            [BF16, BF16, FP32, INT64, None, None],
            8 + 256 + 2 * 576 * 2,
            3 * 576,
        ),
        (
            "sgl_kernel::apply_rope_pos_ids_cos_sin_cache",
            [[1, 2, 8], [1, 1, 8], [1, 2, 8], [1, 1, 8], [16, 8], [1], []],
            [BF16, BF16, BF16, BF16, FP32, INT, None],
            96 + 32 + 4,
            72,
        ),
        # quantise: 4 × 256 values, as many of one byte, two scales a row
        (
            "sgl_kernel::sgl_per_token_group_quant_8bit",
            [[4, 256], [4, 256], [4, 2], []],
            [BF16, FP8, FP32, None],
            2048 + 1024 + 32,
            2048,
        ),
        ("_C::static_scaled_fp8_quant", [[4, 256], [4, 256], [1]], [FP8, BF16, FP32], 1024 + 2048 + 4, 2048),
        # half a byte a value and a scale for 16, though the scales' tensor is padded to 128 rows
        (
            "sgl_kernel::scaled_fp4_quant",
            [[1, 128], [1, 256], [128, 16], [1]],
            [BYTE, BF16, FP8, FP32],
            512 + 128 + 16,
            512,
        ),
        ("_C::scaled_fp4_quant", [[1, 256], [1], []], [BF16, FP32, None], 512 + 128 + 16, 512),
        # KV append: read as BF16, written in the pool's type
        (
            "_C_cache_ops::reshape_and_cache_flash",
            [[32, 8, 64], [32, 8, 64], [224_304, 32, 8, 64], [224_304, 32, 8, 64], [32], [], [], []],
            [BF16, BF16, BF16, BF16, INT64, None, None, None],
            2 * 65_536 + 256,
            0,
        ),
        (
            "_C_cache_ops::concat_and_cache_mla",
            [[1, 512], [1, 64], [1000, 64, 576], [1], [], [1]],
            [BF16, BF16, BYTE, INT64, None, FP32],
            1152 + 576 + 8,
            0,
        ),
        # sampling
        (
            "sgl_kernel::top_k_top_p_sampling_from_probs",
            [[2, 100], [2], [], [2], [], [2]],
            [FP32, INT, None, INT, None, FP32],
            800 + 8 + 8 + 8,
            200,
        ),
        ("_C::apply_repetition_penalties_", [[1, 100], [1, 100], [1, 100], [1]], [FP32, BOOL, BOOL, FP32], 1004, 100),
        ("aten::exponential_", [[1, 100], [], []], [FP32, None, None], 400, 100),
        ("aten::index_select", [[19_392, 6144], [], [1]], [BF16, None, INT64], 8 + 2 * 12_288, 0),
        # norms and activations of other libraries
        ("aiter::rmsnorm", [[2, 8], [2, 8], [8], []], [BF16, BF16, BF16, None], 80, 64),
        ("aiter::add_rmsnorm", [[2, 8], [2, 8], [2, 8], [2, 8], [8], []], [BF16] * 5 + [None], 144, 80),
        ("sglang::_run_activation_inplace", [[], [1, 512], [1, 256]], [None, BF16, BF16], 1536, 512),
        # generated kernels: what they are given, once
        (
            "triton_per_fused_copy__mul_sum_0",
            [[1, 8, 6144], [1, 6144], [], []],
            [BF16, BF16, None, None],
            110_592,
            49_152,
        ),
    ],
)
def test_an_op_costs_its_operands_and_operations(
    op: str, shapes: list[list[int]], dtypes: list[str | None], size: int, flops: int
) -> None:
    work = work_of(Call(op, shapes, dtypes))
    assert work is not None
    assert (work.bytes, work.flops) == (size, flops)


@pytest.mark.parametrize(
    "op", ["triton_poi_fused_0", "triton_poi_fused_embedding_1", "triton_red_fused_split_with_sizes_mul_2", "triton_x"]
)
def test_generated_kernels_that_may_take_a_part_are_left_out(op: str) -> None:
    assert work_of(Call(op, [[32], [201_088, 2880]], [INT64, BF16])) is None


@pytest.mark.parametrize(
    ("op", "shapes", "dtypes"),
    [
        ("_C::rotary_embedding", [[1], [1, 64]], [INT64, BF16]),
        ("sgl_kernel::apply_rope_pos_ids_cos_sin_cache", [[1, 2, 8]], [BF16]),
        ("sgl_kernel::sgl_per_token_quant_fp8", [[4, 256]], [BF16]),
        ("_C::scaled_fp4_quant", [[1]], [FP32]),
        ("_C_cache_ops::concat_and_cache_mla", [[1, 512], [1, 64]], [BF16, BF16]),
        ("sgl_kernel::topk_softmax", [], []),
        ("_moe_C::moe_permute", [[2, 16]], [BF16]),
        ("_moe_C::moe_unpermute", [[2, 16]], [BF16]),
        ("_moe_C::shuffle_rows", [[2, 16]], [BF16]),
        ("_moe_C::moe_align_block_size", [], []),
        ("flashinfer::top_p_renorm_probs", [[2]], [FP32]),
        ("aten::index_select", [[0, 8], [], [1]], [BF16, None, INT64]),
        ("sglang::_run_activation_inplace", [[1, 512]], [BF16]),
    ],
)
def test_inputs_that_do_not_fit_cost_nothing_known(op: str, shapes: list[list[int]], dtypes: list[str | None]) -> None:
    assert work_of(Call(op, shapes, dtypes)) is None
