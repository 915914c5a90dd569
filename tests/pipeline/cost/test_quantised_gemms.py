"""Bytes and operations of multiplications by quantised weights, worked out by hand from their shapes."""

from __future__ import annotations

import pytest

from stepscope.pipeline.cost.ops import Call, as_gemm, in_16_bits, work_of

BF16, FP16, FP8, FP32, BYTE, INT = "BFloat16", "Half", "Float8_e4m3fn", "Float", "Byte", "Int"

MARLIN = [[2, 256], [], [16, 128], [], [2, 64], [], [], [], [], [], [132]]
"""256 × 64 values of 4 bits: 8192 B in 16 × 128 words. Two rows of 64 scales; 2 × 256 inputs, 2 × 64 results."""


@pytest.mark.parametrize(
    ("op", "shapes", "dtypes", "size", "flops", "multiplied"),
    [
        (
            "_C::gptq_marlin_gemm",
            MARLIN,
            [BF16, None, INT, None, BF16, None, None, None, None, None, INT],
            1024 + 8192 + 256 + 256,
            2 * 2 * 64 * 256,
            BF16,
        ),
        # an earlier release: no place for the result or a bias, and empty tensors where there is nothing
        (
            "_C::gptq_marlin_gemm",
            [[2, 256], [16, 128], [2, 64], [0], [0], [0], [132]],
            [BF16, INT, BF16, INT, INT, INT, INT],
            1024 + 8192 + 256 + 256,
            2 * 2 * 64 * 256,
            BF16,
        ),
        # the result's tensor is given: it is no scale
        (
            "sgl_kernel::gptq_marlin_gemm",
            [[2, 256], [2, 64], [16, 128], [2, 64]],
            [BF16, BF16, INT, BF16],
            1024 + 8192 + 256 + 256,
            2 * 2 * 64 * 256,
            BF16,
        ),
        # 128 × 64 values of 4 bits, a scale and a zero point for 128
        (
            "_C::awq_gemm",
            [[1, 128], [128, 8], [1, 64], [1, 8], []],
            [FP16, INT, FP16, INT, None],
            256 + 4096 + 128 + 32 + 128,
            2 * 64 * 128,
            FP16,
        ),
        # 64 × 128 values of 4 bits as torch tiles them; a scale and a zero point for 32 of them
        (
            "aten::_weight_int4pack_mm",
            [[2, 128], [8, 4, 32, 1], [], [4, 64, 2]],
            [BF16, INT, None, BF16],
            512 + 4096 + 1024 + 256,
            2 * 2 * 64 * 128,
            BF16,
        ),
        # 64 × 128 values of 4 bits in blocks of 32, a scale each
        (
            "com.microsoft::MatMulNBits",
            [[1, 128], [64, 4, 16], [256]],
            [FP16, BYTE, FP16],
            256 + 4096 + 512 + 128,
            2 * 64 * 128,
            FP16,
        ),
        # 64 × 128 values of 4 bits in one column; 64 share a scale, and 16 values are told by a table
        (
            "bitsandbytes::gemv_4bit",
            [[1, 1, 128], [4096, 1], [], [128], [16], []],
            [BF16, BYTE, None, FP32, FP32, None],
            256 + 4096 + 512 + 64 + 128,
            2 * 64 * 128,
            BF16,
        ),
        # a byte a value
        (
            "aten::_weight_int8pack_mm",
            [[2, 128], [64, 128], [64]],
            [BF16, "Char", BF16],
            512 + 8192 + 128 + 256,
            2 * 2 * 64 * 128,
            BF16,
        ),
        # k = 64 in 32 bytes a row; scales as they lie, padded to 128 rows
        (
            "_C::cutlass_scaled_fp4_mm",
            [[2, 32], [2, 32], [32, 32], [128, 4], [128, 4], [1]],
            [BF16, BYTE, BYTE, FP8, FP8, FP32],
            128 + 64 + 1024 + 512 + 512 + 4,
            2 * 2 * 32 * 64,
            "Float4",
        ),
        (
            "vllm::flashinfer_mm_fp4",
            [[2, 32], [32, 16], [128, 4], [4, 128], [1], [], []],
            [BYTE, BYTE, BYTE, BYTE, FP32, None, None],
            64 + 512 + 512 + 512 + 4 + 64,
            2 * 2 * 16 * 64,
            "Float4",
        ),
        (
            "sglang::deep_gemm_fp8_fp8_bf16_nt",
            [[4, 128], [4, 1], [256, 128], [2, 1], [4, 256]],
            [FP8, FP32, FP8, FP32, BF16],
            512 + 16 + 32_768 + 8 + 2048,
            2 * 4 * 256 * 128,
            FP8,
        ),
        (
            "sgl_kernel::fp8_blockwise_scaled_mm",
            [[4, 128], [128, 256], [4, 1], [1, 2], []],
            [FP8, FP8, FP32, FP32, None],
            512 + 32_768 + 16 + 8 + 2048,
            2 * 4 * 256 * 128,
            FP8,
        ),
        (
            "vllm::w8a8_triton_block_scaled_mm_func",
            [[4, 128], [256, 128], [4, 1], [2, 1], [], []],
            [FP8, FP8, FP32, FP32, None, None],
            512 + 32_768 + 16 + 8 + 2048,
            2 * 4 * 256 * 128,
            FP8,
        ),
        # Q4_K: 256 values in 144 bytes
        (
            "_C::ggml_mul_mat_vec_a8",
            [[10, 144], [1, 256], [], []],
            [BYTE, FP16, None, None],
            1440 + 512 + 20,
            5120,
            FP16,
        ),
        ("aiter::gemm_a16w16", [[2, 8], [4, 8], []], [BF16, BF16, None], 32 + 64 + 16, 2 * 2 * 4 * 8, BF16),
        ("sgl_kernel::dsv3_router_gemm", [[2, 4], [2, 8], [4, 8]], [FP32, BF16, BF16], 32 + 32 + 64, 128, BF16),
        ("aten::linear", [[1, 2, 8], [4, 8], [4]], [BF16] * 3, 32 + 64 + 8 + 16, 128, BF16),
    ],
)
def test_weights_count_as_stored_and_operations_by_the_values(  # noqa: PLR0917 -- a table
    op: str, shapes: list[list[int]], dtypes: list[str | None], size: int, flops: int, multiplied: str
) -> None:
    work = work_of(Call(op, shapes, dtypes))
    assert work is not None
    assert (work.bytes, work.flops, work.multiply_dtype) == (size, flops, multiplied)


def test_a_packed_weight_is_named_by_its_values() -> None:
    packed = as_gemm(Call("_C::gptq_marlin_gemm", MARLIN, [BF16, None, INT, None, BF16, *[None] * 5, INT]))
    assert packed is not None
    assert packed.weight_shape == (64, 256)


def test_grouped_rows_read_the_experts_that_they_are_expected_to_hit() -> None:
    """Two rows among 4 experts hit 4 (1 − (3/4)²) = 1.75 of them."""
    plain = work_of(Call("aten::_grouped_mm", [[2, 8], [4, 8, 16], [4]], [BF16, BF16, INT]))
    assert plain is not None
    assert plain.bytes == pytest.approx(32 + 1.75 * 256 + 64)
    assert plain.flops == 2 * 2 * 16 * 8


def test_grouped_fp4_unpacks_its_inner_width_and_reads_its_experts_scales() -> None:
    """k = 16 in 8 bytes: an expert has 16 × 8 B and 16 scales; the groups' sizes [4, 3] are none of its weight."""
    shapes = [[2, 16], [2, 8], [4, 16, 8], [128, 4], [4, 16, 1], [4], [4, 3], [4], [4]]
    dtypes = [BF16, BYTE, BYTE, FP8, FP8, FP32, INT, INT, INT]
    work = work_of(Call("_C::cutlass_fp4_group_mm", shapes, dtypes))
    assert work is not None
    assert work.bytes == pytest.approx(16 + 1.75 * (128 + 16) + 64)
    assert (work.flops, work.multiply_dtype) == (2 * 2 * 16 * 16, "Float4")


def test_grouped_fp8_finds_its_factors_behind_the_pointers() -> None:
    shapes = [[2, 16], *[[4]] * 5, [2, 8], [4, 8, 16], [2, 1], [4, 1, 1], [4, 3], [4]]
    dtypes = [BF16, *["Long"] * 5, FP8, FP8, FP32, FP32, INT, INT]
    work = work_of(Call("sgl_kernel::fp8_blockwise_scaled_grouped_mm", shapes, dtypes))
    assert work is not None
    assert work.bytes == pytest.approx(16 + 1.75 * (128 + 4) + 64)
    assert (work.flops, work.multiply_dtype) == (2 * 2 * 16 * 8, FP8)


def test_marlin_experts_by_the_weights_of_the_chosen() -> None:
    """Two tokens that choose 2 of 4 experts each hit 4 (1 − (1/2)²) = 3; an expert has 64 × 32 values, 1024 B."""
    shapes = [[2, 64], [], [4, 4, 64], [], [4, 2, 32], *[[]] * 5, [132], [16], [4], [1], [2, 2]]
    dtypes = [BF16, None, INT, None, BF16, *[None] * 5, INT, INT, INT, INT, FP32]
    work = work_of(Call("_moe_C::moe_wna16_marlin_gemm", shapes, dtypes))
    assert work is not None
    assert work.bytes == pytest.approx(256 + 3 * (1024 + 128) + 2 * 2 * 32 * 2)
    assert (work.flops, work.multiply_dtype) == (2 * 2 * 2 * 32 * 64, BF16)


def test_fused_experts_in_fp8_read_their_scales_and_in_int4_half_a_byte_a_value() -> None:
    """One token hits 2 of 4 experts: half of the weights and of their scales."""
    shapes = [[1, 64], [4, 32, 64], [4, 64, 16], [1, 2], [1, 2], [], [4, 1, 1], [4, 1, 1]]
    fp8 = work_of(Call("vllm::inplace_fused_experts", shapes, [BF16, FP8, FP8, FP32, INT, None, FP32, FP32]))
    assert fp8 is not None
    assert fp8.bytes == pytest.approx((4 * 32 * 64 + 4 * 64 * 16 + 16 + 16) / 2 + 2 * 128)
    assert (fp8.flops, fp8.multiply_dtype) == (2 * 2 * 3 * 16 * 64, FP8)
    shapes = [[1, 64], [4, 32, 32], [4, 64, 8], [1, 2], [1, 2]]
    int4 = work_of(Call("vllm::inplace_fused_experts", shapes, [BF16, BYTE, BYTE, FP32, INT]))
    assert int4 is not None
    assert int4.bytes == pytest.approx((4 * 32 * 32 + 4 * 64 * 8) / 2 + 2 * 128)
    assert (int4.flops, int4.multiply_dtype) == (2 * 2 * 3 * 16 * 64, BF16)


@pytest.mark.parametrize(
    ("op", "shapes", "dtypes"),
    [
        ("_C::gptq_marlin_gemm", [[2, 256], [16, 128]], [BF16, INT]),  # no scales
        ("_C::gptq_marlin_gemm", [[2, 256], [2, 64]], [BF16, BF16]),  # no words
        ("_C::cutlass_scaled_fp4_mm", [[2, 32], [2, 32], [32, 16]], [BF16, BYTE, BYTE]),
        ("sglang::deep_gemm_fp8_fp8_bf16_nt", [[4, 128], [4, 1], [256, 128], [2, 1], [4, 255]], [FP8] * 5),
        ("_C::ggml_mul_mat_a8", [[10, 144]], [BYTE]),
        ("aten::_weight_int4pack_mm", [[2, 100], [8, 4, 32, 1]], [BF16, INT]),  # 8192 values are no rows of 100
        ("aten::_weight_int4pack_mm", [[2, 128], [64, 128]], [BF16, BF16]),
        ("aten::_weight_int8pack_mm", [[2, 128], [128, 64], [64]], [BF16, "Char", BF16]),
        ("aten::_grouped_mm", [[8, 2], [8, 4]], [BF16, BF16]),
        ("aten::_grouped_mm", [[4, 8, 2]], [BF16]),
        ("aten::_grouped_mm", [[2, 7], [4, 8, 16]], [BF16, BF16]),
        ("_moe_C::moe_wna16_marlin_gemm", [[2, 64], [4, 4, 64]], [BF16, INT]),
        ("_moe_C::moe_wna16_marlin_gemm", [[4, 4, 64]], [INT]),
        ("vllm::inplace_fused_experts", [[1, 64], [4, 32, 48], [4, 64, 8], [1, 2], [1, 2]], [BF16] * 5),
    ],
)
def test_inputs_that_do_not_fit_cost_nothing_known(op: str, shapes: list[list[int]], dtypes: list[str | None]) -> None:
    assert work_of(Call(op, shapes, dtypes)) is None


@pytest.mark.parametrize(
    ("op", "shapes", "dtypes", "values", "flops"),
    [
        # 2 × 256 inputs, 256 × 64 weights, 2 × 64 results
        ("_C::gptq_marlin_gemm", MARLIN, [BF16, None, INT, None, BF16, *[None] * 5, INT], 512 + 16_384 + 128, 65_536),
        ("aten::_scaled_mm", [[4, 64], [64, 32], [1], [1]], [FP8, FP8, FP32, FP32], 256 + 2048 + 128, 16_384),
        # 6 rows hit 8 · (1 − (7/8)⁶) of 8 experts, 64 × 32 weights each; 6 rows in and out
        ("_C::cutlass_moe_mm", [[6, 32], [6, 64], [8, 64, 32]], [BF16, FP8, FP8], 4.4096 * 2048 + 6 * 96, 24_576),
        # as before, two values a byte
        (
            "_C::cutlass_fp4_group_mm",
            [[6, 32], [6, 32], [8, 32, 32]],
            [BF16, BYTE, BYTE],
            4.4096 * 2048 + 6 * 96,
            24_576,
        ),
        # 3 tokens through 2 of 4 experts hit 4 · (1 − 1/8) = 3.5: 3 · 16 · 8 weights each, x in and out
        (
            "sglang::inplace_fused_experts",
            [[3, 16], [4, 16, 16], [4, 16, 8], [3, 2], [3, 2]],
            [BF16, FP8, FP8, FP32, INT],
            3.5 * 384 + 96,
            2 * 6 * 384,
        ),
    ],
)
def test_the_same_in_16_bits(
    op: str, shapes: list[list[int]], dtypes: list[str | None], values: float, flops: int
) -> None:
    work = in_16_bits(Call(op, shapes, dtypes))
    assert work is not None
    assert work.bytes == pytest.approx(2 * values, rel=1e-4)
    assert (work.flops, work.multiply_dtype) == (flops, BF16)


@pytest.mark.parametrize(
    ("op", "shapes", "dtypes"),
    [
        ("aten::mm", [[4, 64], [64, 32]], [BF16, BF16]),
        ("aten::mm", [[4, 64], [64, 32]], [FP32, FP32]),
        ("aten::_grouped_mm", [[6, 64], [8, 64, 32], [8]], [BF16, BF16, INT]),
        (
            "sglang::inplace_fused_experts",
            [[3, 16], [4, 16, 16], [4, 16, 8], [3, 2], [3, 2]],
            [BF16, BF16, BF16, FP32, INT],
        ),
        ("aten::add", [[4, 64], [4, 64]], [FP8, FP8]),
        ("aten::_scaled_mm", [[4, 64], [65, 32], [1], [1]], [FP8, FP8, FP32, FP32]),
    ],
)
def test_what_is_in_16_bits_or_no_multiplication_has_no_such_twin(
    op: str, shapes: list[list[int]], dtypes: list[str | None]
) -> None:
    assert in_16_bits(Call(op, shapes, dtypes)) is None
