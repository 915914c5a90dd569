"""Counts of parameters against what the publishers say, and against sums worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.model import published_configs

from stepscope.model import count_parameters, load_model, read_config


@pytest.mark.parametrize(
    ("model", "total", "billions", "digits"),
    [
        ("deepseek-v3", 671_026_419_200, 671, 0),
        ("glm-5", 743_911_218_432, 744, 0),
        ("kimi-k2", 1_026_408_232_448, 1.0e3, -2),
        ("llama-3.1-8b", 8_030_261_248, 8.03, 2),
        ("llama-3.1-70b", 70_553_706_496, 70.6, 1),
        ("qwen3-235b-a22b", 235_093_634_560, 235, 0),
        ("mixtral-8x7b", 46_702_792_704, 46.7, 1),
        ("gpt-oss-120b", 116_829_156_672, 116.8, 1),
        ("qwen3-8b", 8_190_735_360, 8.2, 1),
    ],
)
def test_totals_are_the_published_ones(model: str, total: int, billions: float, digits: int) -> None:
    """Exact numbers are of the checkpoints' own tensors (Llama-3.1-70B: 141,107,412,992 bytes of BF16, and so on)."""
    found = count_parameters(load_model(model)).total
    assert found == total
    assert round(found / 1e9, digits) == billions


@pytest.mark.parametrize(
    ("model", "billions", "counts_embedding"),
    [
        ("deepseek-v3", 36.7, True),  # README_WEIGHTS: "including 0.9B for Embedding and 0.9B for the output Head"
        ("glm-5", 40, True),
        ("kimi-k2", 32, True),
        ("qwen3-235b-a22b", 22, True),
        ("mixtral-8x7b", 12.9, True),
        ("gpt-oss-120b", 5.1, False),  # the model card counts the LM head, not the embedding
    ],
)
def test_active_parameters_are_the_published_ones(model: str, billions: float, *, counts_embedding: bool) -> None:
    found = count_parameters(load_model(model))
    active = found.active if counts_embedding else found.active - found.embedding
    assert active / 1e9 == pytest.approx(billions, rel=0.05)


def test_the_active_ones_that_are_published_to_a_decimal() -> None:
    mixtral, oss = count_parameters(load_model("mixtral-8x7b")), count_parameters(load_model("gpt-oss-120b"))
    assert round(mixtral.active / 1e9, 1) == 12.9
    assert round((oss.active - oss.embedding) / 1e9, 2) == 5.13
    assert oss.embedding == oss.lm_head == 201_088 * 2880


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (published_configs.PHI_2, 2_779_683_840),
        (published_configs.PHI_3_MINI, 3_821_079_552),
        (published_configs.MISTRAL_7B, 7_241_732_096),
        (published_configs.QWEN_2_5_7B, 7_615_616_512),
        (published_configs.GEMMA_2_9B, 9_241_705_984),
        (published_configs.GEMMA_3_4B, 3_880_263_168),  # the language model of the 4.3 billion
        (published_configs.GLM_4_9B_0414, 9_400_279_040),
        (published_configs.QWEN_1_5_MOE, 14_315_784_192),
        (published_configs.DEEPSEEK_MOE_16B, 16_375_728_128),
        (published_configs.DEEPSEEK_V2_LITE, 15_706_484_224),
        (published_configs.GPT_OSS_20B, 20_914_757_184),
    ],
)
def test_totals_of_each_family(config: dict[str, Any], total: int) -> None:
    assert count_parameters(read_config(config)).total == total


def test_llama_by_hand() -> None:
    """Width 4096, 32 heads and 8 of keys of 128, MLP of 14336, 32 layers, two tables of 128,256 rows."""
    attention = 4096 * 4096 + 2 * 1024 * 4096 + 4096 * 4096
    layer = attention + 3 * 14336 * 4096 + 2 * 4096
    assert count_parameters(load_model("llama-3.1-8b")).total == 32 * layer + 4096 + 2 * 128_256 * 4096


def test_gpt_oss_by_hand() -> None:
    """Biases of every projection, a sink a head, and 128 experts of which 4 are used."""
    attention = (4096 + 2 * 512) * 2880 + (4096 + 2 * 512) + 2880 * 4096 + 2880 + 64
    expert = 2 * 2880 * 2880 + 2 * 2880 + 2880 * 2880 + 2880
    rest = attention + 128 * 2880 + 128 + 2 * 2880
    tables = 2 * 201_088 * 2880 + 2880
    found = count_parameters(load_model("gpt-oss-120b"))
    assert found.total == 36 * (rest + 128 * expert) + tables
    assert found.active == 36 * (rest + 4 * expert) + tables


def test_multi_token_prediction_is_counted_apart() -> None:
    """DeepSeek-V3's README_WEIGHTS gives its module 11.5 billion parameters of its own."""
    found = count_parameters(load_model("deepseek-v3"))
    layer = 256 * 3 * 2048 * 7168 + 3 * 2048 * 7168 + 256 * 7168 + 256  # experts, the shared one, the router
    layer += 1536 * 7168 + 128 * 192 * 1536 + 576 * 7168 + 128 * 256 * 512 + 7168 * 128 * 128 + 1536 + 512 + 2 * 7168
    assert found.mtp == layer + 7168 * 2 * 7168 + 3 * 7168
    assert found.mtp / 1e9 == pytest.approx(11.5, rel=0.01)
    assert count_parameters(load_model("kimi-k2")).mtp == 0


def test_a_tied_head_is_counted_once() -> None:
    found = count_parameters(read_config(published_configs.GEMMA_2_9B))
    assert (found.embedding, found.lm_head) == (256_000 * 3584, 0)
