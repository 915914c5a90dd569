"""The weights on one rank, family by family: shapes worked out from the configs by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.model import published_configs

from stepscope.errors import UsageError
from stepscope.model import Component, Parallel, Weight, find_format, load_model, mtp_weights, rank_weights, read_config


def weights(model: str | dict[str, Any], parallel: Parallel, stage: range | None = None) -> dict[str, Weight]:
    spec = load_model(model) if isinstance(model, str) else read_config(model)
    held = rank_weights(spec, parallel, stage=stage)
    assert len({weight.name for weight in held}) == len(held)
    return {weight.name: weight for weight in held}


def shapes(model: str | dict[str, Any], parallel: Parallel) -> dict[str, tuple[int, ...]]:
    return {name: weight.shape for name, weight in weights(model, parallel).items()}


class TestHeads:
    def test_llama_70b_on_one_rank_of_eight(self) -> None:
        """8 of 64 heads and 1 of 8 of keys and values, 128 wide."""
        found = shapes("llama-3.1-70b", Parallel(8))
        assert found["qkv_proj"] == ((8 + 2) * 128, 8192)
        assert (found["q_proj"], found["k_proj"], found["v_proj"]) == ((1024, 8192), (128, 8192), (128, 8192))
        assert found["o_proj"] == (8192, 1024)
        assert found["dense_w13"] == (2 * 3584, 8192)
        assert found["dense_w1"] == found["dense_w3"] == (3584, 8192)
        assert found["dense_w2"] == (8192, 3584)
        assert found["lm_head"] == found["embedding"] == (16_032, 8192)

    def test_fewer_heads_of_keys_than_ranks_are_held_several_times(self) -> None:
        """Qwen3-235B has 4 heads of keys and values, so that two ranks of eight share one."""
        assert shapes("qwen3-235b-a22b", Parallel(8))["qkv_proj"] == ((8 + 2) * 128, 4096)
        assert shapes("qwen3-235b-a22b", Parallel(4))["qkv_proj"] == ((16 + 2) * 128, 4096)

    def test_heads_of_keys_that_do_not_divide_are_wrong_usage(self) -> None:
        config = {**published_configs.MISTRAL_7B, "num_attention_heads": 24, "num_key_value_heads": 3, "head_dim": 128}
        with pytest.raises(UsageError, match="num_key_value_heads, 3, neither divides by 2 ranks nor divides them"):
            weights(config, Parallel(2))

    def test_norms_of_queries_and_keys_are_on_every_rank(self) -> None:
        assert shapes("qwen3-8b", Parallel(8))["q_norm"] == shapes("qwen3-8b", Parallel(8))["k_norm"] == (128,)


class TestBiases:
    def test_gpt_oss_on_one_rank_of_eight(self) -> None:
        """8 of 64 heads, 360 of an expert's 2880; what is added after a sum over ranks is on each of them."""
        found = shapes("gpt-oss-120b", Parallel(8))
        assert (found["qkv_bias"], found["o_bias"], found["sinks"]) == ((10 * 64,), (2880,), (8,))
        assert (found["w13"], found["w13_bias"]) == ((128, 720, 2880), (128, 720))
        assert (found["w2"], found["w2_bias"]) == ((128, 2880, 360), (128, 2880))
        assert (found["router"], found["router_bias"]) == ((128, 2880), (128,))

    def test_phi_has_them_everywhere_and_no_gate(self) -> None:
        found = shapes(published_configs.PHI_2, Parallel(2))
        assert (found["dense_w1"], found["dense_w1_bias"]) == ((5120, 2560), (5120,))
        assert (found["dense_w2"], found["dense_w2_bias"]) == ((2560, 5120), (2560,))
        assert found["input_norm_bias"] == found["final_norm_bias"] == (2560,)
        assert found["lm_head_bias"] == (25_600,)
        assert not {"dense_w13", "dense_w3", "post_attention_norm"} & found.keys()

    def test_no_format_converts_a_vector(self) -> None:
        formats = {component: find_format("nvfp4") for component in Component}
        held = rank_weights(load_model("gpt-oss-120b"), Parallel(), formats)
        vectors = {weight.name for weight in held if weight.format.name == "bf16"}
        assert vectors == {
            *("qkv_bias", "o_bias", "sinks", "w13_bias", "w2_bias", "router_bias"),
            *("input_norm", "post_attention_norm", "final_norm"),
        }


class TestExperts:
    def test_expert_parallel_shares_out_whole_experts(self) -> None:
        found = shapes("glm-5", Parallel(8, ep=8))
        assert (found["w13"], found["w2"]) == ((32, 4096, 6144), (32, 6144, 2048))
        assert (found["router"], found["shared_w13"]) == ((256, 6144), (512, 6144))

    def test_experts_shared_out_and_split(self) -> None:
        assert shapes("glm-5", Parallel(8, ep=4))["w13"] == (64, 2 * 1024, 6144)

    def test_attention_of_ranks_with_requests_of_their_own_is_whole(self) -> None:
        found = shapes("deepseek-v3", Parallel(8, attention_dp=8, ep=8))
        assert (found["q_b_proj"], found["o_proj"]) == ((128 * 192, 1536), (7168, 128 * 128))
        assert (found["embedding"], found["lm_head"]) == ((129_280, 7168), (16_160, 7168))

    def test_a_gate_weighs_the_shared_expert(self) -> None:
        found = shapes(published_configs.QWEN_1_5_MOE, Parallel(4))
        assert (found["shared_gate"], found["shared_w13"]) == ((1, 2048), (2 * 1408, 2048))

    def test_experts_that_do_not_divide_are_wrong_usage(self) -> None:
        with pytest.raises(UsageError, match="routed experts, 60, does not divide by 8 ranks"):
            weights(published_configs.QWEN_1_5_MOE, Parallel(8, ep=8))


class TestNorms:
    def test_gemma_2_has_four_a_layer(self) -> None:
        found = weights(published_configs.GEMMA_2_9B, Parallel())
        norms = [weight for weight in found.values() if weight.component is Component.NORM and weight.layers]
        assert [(weight.shape, weight.count) for weight in norms] == [((3584,), 42)] * 4


class TestVocabulary:
    def test_it_is_filled_up_to_64_rows_before_it_is_split(self) -> None:
        config = {**published_configs.MISTRAL_7B, "vocab_size": 32_001}
        assert shapes(config, Parallel())["embedding"] == (32_001, 4096)
        assert shapes(config, Parallel(2))["embedding"] == (32_064 // 2, 4096)

    def test_a_tied_head_is_no_weight_of_its_own(self) -> None:
        assert weights(published_configs.GEMMA_2_9B, Parallel())["lm_head"].is_derived


class TestStages:
    def test_the_stages_of_a_pipeline_hold_all_weights_once(self) -> None:
        spec = load_model("deepseek-v3.2")
        whole = [weight for weight in rank_weights(spec, Parallel(8)) if not weight.is_derived]
        parts = [rank_weights(spec, Parallel(8), stage=stage) for stage in (range(31), range(31, 61))]
        held = [weight for part in parts for weight in part if not weight.is_derived]
        assert sum(w.elements * w.count for w in held) == sum(w.elements * w.count for w in whole)
        first, last = ({weight.name for weight in part} for part in parts)
        assert first - last == {"embedding", "dense_w13", "dense_w1", "dense_w3", "dense_w2"}
        assert last - first == {"final_norm", "lm_head"}

    def test_a_stage_names_its_own_layers(self) -> None:
        found = weights("deepseek-v3", Parallel(8, pp=2), range(2, 5))
        assert (found["o_proj"].layers, found["dense_w2"].layers, found["w2"].layers) == ((2, 3, 4), (2,), (3, 4))

    def test_a_tied_head_on_a_stage_without_the_embedding_is_a_weight(self) -> None:
        assert not weights(published_configs.GEMMA_2_9B, Parallel(), range(21, 42))["lm_head"].is_derived


class TestMultiTokenPrediction:
    def test_its_layer_follows_the_models(self) -> None:
        found = {weight.name: weight for weight in mtp_weights(load_model("glm-5"), Parallel(8))}
        assert {weight.component for weight in found.values()} == {Component.MTP}
        assert {weight.layers for weight in found.values()} == {(78,)}
        assert found["mtp_eh_proj"].shape == (6144, 2 * 6144)
        assert found["mtp_w13"].shape == (256, 512, 6144)
        assert found["mtp_index_k_proj"].shape == (128, 6144)

    def test_it_is_not_among_the_models_weights(self) -> None:
        assert not any(w.component is Component.MTP for w in rank_weights(load_model("glm-5"), Parallel(8)))

    def test_its_experts_are_stored_as_the_others(self) -> None:
        formats = {Component.EXPERTS: find_format("nvfp4")}
        found = {weight.name: weight for weight in mtp_weights(load_model("glm-5"), Parallel(8), formats)}
        assert (found["mtp_w13"].format.name, found["mtp_o_proj"].format.name) == ("nvfp4", "bf16")

    def test_a_model_without_has_none(self) -> None:
        assert mtp_weights(load_model("kimi-k2"), Parallel()) == ()


def test_layers_without_an_index_of_their_own_have_none_of_its_weights() -> None:
    found = weights({"model_type": "glm_moe_dsa", "num_hidden_layers": 7, "index_topk_freq": 4}, Parallel())
    assert found["index_q_proj"].layers == found["index_k_norm"].layers == (0, 1, 5)
