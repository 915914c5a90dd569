"""Attention's work by the model, by hand from its published sizes."""

from __future__ import annotations

import pytest

from stepscope.model import Deployment
from stepscope.pipeline.cost import Work, attention
from stepscope.pipeline.cost.rank import Load, Rank

FLASHINFER = "void flashinfer::mla::BatchMLAPageAttentionHopperKernel<Traits<false, 2u, __nv_bfloat16, __nv_bfloat16> >"


def rank(model: str, tp: int = 1, dp: int | None = None) -> Rank:
    served = Deployment.of(model, tp, None, dp=dp)
    assert served.spec is not None
    assert served.parallel is not None
    return Rank(served.spec, served.parallel, served.weights)


def test_mla_decode_reads_the_latent_once_for_all_heads() -> None:
    """GLM-5, 8 of 64 heads: 1000 rows of 576; queries of 576 and results of 512 a head."""
    ((layers, work),) = attention.decode(rank("glm-5", 8), Load(1, 1000, "BFloat16"))
    assert layers == 78
    assert work == Work(1000 * 576 * 2 + 8 * 1088 * 2, 2 * 1000 * 8 * 1088)
    ((_, narrow),) = attention.decode(rank("glm-5", 8), Load(1, 1000, "Float8_e4m3fn"))
    assert narrow == Work(1000 * 576 + 8 * 1088 * 2, 2 * 1000 * 8 * 1088, "Float8_e4m3fn")


def test_a_sparse_index_limits_what_is_read_but_not_what_is_scored() -> None:
    """GLM-5 reads at most 2048 rows; its index scores all 10,000 keys of 128 + 4 B with 32 heads."""
    load = Load(1, 10_000, "BFloat16")
    ((_, read),) = attention.decode(rank("glm-5", 8), load)
    assert read.bytes == 2048 * 576 * 2 + 8 * 1088 * 2
    ((layers, scored),) = attention.index_decode(rank("glm-5", 8), load)
    assert layers == 78
    assert scored == Work(10_000 * 132, 2 * 10_000 * 32 * 129, "Float8_e4m3fn")
    assert list(attention.index_decode(rank("llama-3.1-8b"), load)) == []


def test_gqa_decode_reads_keys_and_values_of_its_heads() -> None:
    """Llama-3.1-8B: 8 heads of 128 for keys, as many for values; two requests of 100 tokens, 32 query heads."""
    ((layers, work),) = attention.decode(rank("llama-3.1-8b"), Load(2, 100, "BFloat16"))
    assert layers == 32
    assert work == Work(200 * 2 * 8 * 128 * 2 + 2 * 32 * 2 * 128 * 2, 2 * 200 * 32 * 2 * 128)


def test_layers_with_a_window_see_no_more() -> None:
    """gpt-oss-120b: 64 query heads of 64 on 8; every other layer sees 128 tokens at most."""
    of_layers = list(attention.decode(rank("gpt-oss-120b"), Load(1, 1000, "BFloat16")))
    works = {tokens: Work(tokens * 2048 + 64 * 128 * 2, 2 * tokens * 64 * 128) for tokens in (128, 1000)}
    assert sorted(of_layers, key=lambda of: of.work.bytes) == [(18, works[128]), (18, works[1000])]


def test_attention_groups_have_requests_of_their_own() -> None:
    """Of 16 requests in 8 groups a rank attends to two, with all 64 heads."""
    ((_, work),) = attention.decode(rank("glm-5", 8, dp=8), Load(16, 1000, "BFloat16"))
    assert work.flops == 2 * 2000 * 64 * 1088


def test_prefill_multiplies_each_query_with_all_up_to_its_own() -> None:
    """Llama-3.1-8B, two prompts of 4 tokens: 10 pairs each; q, k, v and results once."""
    ((layers, work),) = attention.prefill(rank("llama-3.1-8b"), 2, 8)
    assert layers == 32
    assert work == Work(8 * (2 * 32 * 128 + 2 * 8 * 128) * 2, 2 * 20 * 32 * 2 * 128)


def test_prefill_with_a_window_stops_at_it() -> None:
    """130 tokens, a window of 128: 128 · 129/2 pairs, and 128 for each of the last two."""
    pairs = {work.flops / (2 * 64 * 128): layers for layers, work in attention.prefill(rank("gpt-oss-120b"), 1, 130)}
    assert pairs == {128 * 129 / 2 + 2 * 128: 18, 130 * 131 / 2: 18}


def test_mla_prefill_multiplies_by_head() -> None:
    """DeepSeek-V3 on 8 ranks: 16 heads, keys of 192 and values of 128; three tokens, 6 pairs."""
    ((layers, work),) = attention.prefill(rank("deepseek-v3", 8), 1, 3)
    assert layers == 61
    assert work == Work(3 * 16 * 2 * 320 * 2, 2 * 6 * 16 * 320)


@pytest.mark.parametrize(
    ("kernel", "told", "dtype"),
    [
        (FLASHINFER, "Float8_e4m3fn", "BFloat16"),  # a copy is made for it
        (FLASHINFER.replace("__nv_bfloat16, __nv_bfloat16", "__nv_bfloat16, __nv_fp8_e4m3"), None, "Float8_e4m3fn"),
        ("_fwd_grouped_kernel_stage1", "Float8_e4m3fn", "Float8_e4m3fn"),
        ("_fwd_grouped_kernel_stage1", None, "BFloat16"),
    ],
)
def test_a_kernel_reads_the_type_that_its_name_says(kernel: str, told: str | None, dtype: str) -> None:
    assert attention.cache_dtype(kernel, told) == dtype


def test_kernels_of_the_index_are_told_apart() -> None:
    assert attention.is_of_index("void deep_gemm::sm90_fp8_paged_mqa_logits<1u, 64u>")
    assert attention.scores_index("void deep_gemm::sm90_fp8_paged_mqa_logits<1u, 64u>")
    assert attention.is_of_index("topk_transform_decode_kernel")
    assert not attention.scores_index("topk_transform_decode_kernel")
    assert not attention.is_of_index(FLASHINFER)
