"""How weights are stored: tensors and bytes worked out by hand."""

from __future__ import annotations

import pytest

from stepscope.errors import ExitCode, UsageError
from stepscope.model import Stored, find_format, format_names
from stepscope.model.formats import BF16, FP8, NVFP4, fp8_block, gguf, int4


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        *[("bf16", 16), ("fp16", 16), ("nvfp4", 4.5), ("mxfp4", 4.25)],
        # group 128: a 16-bit scale and a 4-bit zero point, or the scale alone
        *[("int4-awq", 4.15625), ("int4-gptq", 4.15625), ("int4-packed", 4.125)],
        # as the facts of the formats have them
        *[("gguf:Q4_0", 4.5), ("gguf:Q4_K", 4.5), ("gguf:Q5_K", 5.5), ("gguf:Q6_K", 6.5625), ("gguf:Q8_0", 8.5)],
        *[("gguf:Q2_K", 2.625), ("gguf:Q3_K", 3.4375), ("gguf:IQ4_XS", 4.25), ("gguf:IQ2_XXS", 2.0625)],
        # the names of the types tell the rest: llama.cpp lists their bits a weight
        *[("gguf:Q4_1", 5), ("gguf:Q5_0", 5.5), ("gguf:Q5_1", 6), ("gguf:IQ4_NL", 4.5), ("gguf:IQ1_S", 1.5625)],
        *[("gguf:IQ1_M", 1.75), ("gguf:IQ2_XS", 2.3125), ("gguf:IQ2_S", 2.5625), ("gguf:IQ3_XXS", 3.0625)],
        *[("gguf:IQ3_S", 3.4375), ("gguf:TQ1_0", 1.6875), ("gguf:TQ2_0", 2.0625), ("gguf:MXFP4", 4.25)],
        *[("gguf:F16", 16), ("gguf:BF16", 16), ("gguf:F32", 32)],
    ],
)
def test_bits_a_weight(name: str, bits: float) -> None:
    assert find_format(name).bits == bits


def test_bits_of_fp8_hold_its_scales() -> None:
    assert FP8.bits == 8 + 4 * 8 / 16384


@pytest.mark.parametrize("name", format_names())
def test_what_is_stored_takes_the_bits_it_says(name: str) -> None:
    """Of a matrix that every block divides; scales of a row or of the whole come on top, here less than 0.5%."""
    shape = (2, 2048, 8192)
    found = find_format(name)
    stored = sum(tensor.bytes for tensor in found.split("w", shape)) * 8 / (2 * 2048 * 8192)
    assert found.bits <= stored <= found.bits * 1.005


@pytest.mark.parametrize("name", format_names())
def test_a_name_leads_to_its_format(name: str) -> None:
    assert find_format(name).name == name


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *[("bf16", "BFloat16"), ("fp16", "BFloat16"), ("fp8", "Float8_e4m3fn"), ("fp8-tensor", "Float8_e4m3fn")],
        *[("fp8-channel", "Float8_e4m3fn"), ("nvfp4", "Float4"), ("nvfp4-w4a16", "BFloat16"), ("mxfp4", "BFloat16")],
        *[("int4-awq", "BFloat16"), ("int4-gptq", "BFloat16"), ("int4-packed", "BFloat16"), ("gguf:Q4_K", "BFloat16")],
    ],
)
def test_narrow_weights_alone_do_not_multiply_faster(name: str, dtype: str) -> None:
    assert find_format(name).multiply_dtype == dtype


class TestStored:
    """GLM-5's w13 on one rank of eight: 256 experts of [512, 6144]; or a matrix of [512, 6144]."""

    def test_nvfp4(self) -> None:
        assert NVFP4.split("w13", (256, 512, 6144)) == (
            Stored("w13", (256, 512, 3072), "Byte"),
            Stored("w13_scale", (256, 512, 384), "Float8_e4m3fn"),
            Stored("w13_scale_2", (256,), "Float"),
            Stored("w13_input_scale", (256,), "Float"),
        )
        assert sum(tensor.bytes for tensor in NVFP4.split("w13", (256, 512, 6144))) == 402_653_184 + 50_331_648 + 2048

    def test_mxfp4(self) -> None:
        assert find_format("mxfp4").split("w2", (32, 2880, 2880)) == (
            Stored("w2_blocks", (32, 2880, 90, 16), "Byte"),
            Stored("w2_scales", (32, 2880, 90), "Byte"),
        )

    def test_fp8_in_blocks_that_do_not_divide(self) -> None:
        """kv_a_proj has 576 rows: four blocks of 128 and a half."""
        weight, scale = FP8.split("kv_a_proj", (576, 7168))
        assert weight == Stored("kv_a_proj", (576, 7168), "Float8_e4m3fn")
        assert scale == Stored("kv_a_proj_scale_inv", (5, 56), "Float")

    def test_fp8_in_other_blocks(self) -> None:
        found = fp8_block(64, 32)
        assert found.name == "fp8-64x32"
        assert found.split("w", (128, 128))[1].shape == (2, 4)

    def test_fp8_by_channel_and_by_tensor(self) -> None:
        assert find_format("fp8-channel").split("w", (8, 512, 6144))[1] == Stored("w_scale", (8, 512, 1), "Float")
        assert find_format("fp8-tensor").split("w", (512, 6144))[1:] == (
            Stored("w_scale", (), "Float"),
            Stored("w_input_scale", (), "Float"),
        )

    def test_awq(self) -> None:
        assert int4.awq().split("w", (512, 6144)) == (
            Stored("w.qweight", (6144, 64), "Int"),
            Stored("w.qzeros", (48, 64), "Int"),
            Stored("w.scales", (48, 512), "Half"),
        )

    def test_gptq(self) -> None:
        assert int4.gptq().split("w", (512, 6144)) == (
            Stored("w.qweight", (768, 512), "Int"),
            Stored("w.qzeros", (48, 64), "Int"),
            Stored("w.scales", (48, 512), "Half"),
            Stored("w.g_idx", (6144,), "Int"),
        )

    def test_int4_in_other_groups(self) -> None:
        assert (int4.gptq(32).name, int4.gptq(32).bits) == ("int4-gptq-g32", 4.625)
        assert (int4.gptq(None).name, int4.gptq(None).bits) == ("int4-gptq-row", 4)
        assert int4.packed(32).split("w", (4096, 7168)) == (  # Kimi-K2-Thinking's experts
            Stored("w_packed", (4096, 896), "Int"),
            Stored("w_scale", (4096, 224), "BFloat16"),
            Stored("w_shape", (2,), "Long"),
        )

    def test_gguf_in_blocks_along_the_input(self) -> None:
        """6144 = 24 blocks of 256, each 2 + 2 + 12 + 128 bytes."""
        assert gguf("Q4_K").split("w", (512, 6144)) == (Stored("w", (512, 24 * 144), "Byte"),)

    def test_plain(self) -> None:
        assert BF16.split("w", (3, 5)) == (Stored("w", (3, 5), "BFloat16"),)
        assert find_format("fp16").split("w", (3, 5)) == (Stored("w", (3, 5), "Half"),)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gguf:Q4_K_M", "mixes types; most of its weights are gguf:Q4_K"),
        ("gguf:Q2_K_S", "mixes types; most of its weights are gguf:Q2_K"),
        ("gguf:IQ3_M", "mixes types; most of its weights are gguf:IQ3_S"),
        ("gguf:Q9_K", "no such GGUF type; known are BF16, F16"),
        ("gguf:", "no such GGUF type"),
        ("int3", "no such format; known are bf16, fp16, fp8"),
        ("", "no such format"),
        ("NVFP4", "no such format"),
    ],
)
def test_another_name_is_wrong_usage(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        find_format(name)
    assert caught.value.exit_code is ExitCode.WRONG_USAGE


def test_gguf_types_are_taken_in_small_letters_too() -> None:
    assert find_format("gguf:q4_k").name == "gguf:Q4_K"


def test_formats_of_one_name_are_the_same() -> None:
    assert int4.awq(128) == find_format("int4-awq")
    assert int4.awq(64) != int4.awq(128)
