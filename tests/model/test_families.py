"""What configs mean, family by family: Hugging Face's defaults, windows, experts, sparse indices."""

from __future__ import annotations

from typing import Any

import pytest
from tests.model import published_configs

from stepscope.errors import UsageError
from stepscope.model import Experts, Gqa, Mla, SparseIndex, load_model, read_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "num_key_value_heads": 8,
    "vocab_size": 128,
}


def attention(**fields: Any) -> Gqa:
    found = read_config({**LLAMA, **fields}).attention
    assert isinstance(found, Gqa)
    return found


def windows(**fields: Any) -> list[int | None]:
    return [layer.window for layer in read_config({**LLAMA, **fields}).layers]


class TestHeads:
    @pytest.mark.parametrize("fields", [{}, {"head_dim": None, "num_key_value_heads": None}])
    def test_as_many_keys_as_queries_and_an_even_share_of_the_width(self, fields: dict[str, Any]) -> None:
        bare = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
        found = read_config({**bare, **fields}).attention
        assert isinstance(found, Gqa)
        assert (found.num_key_value_heads, found.head_dim) == (8, 8)

    def test_told_ones_are_taken(self) -> None:
        found = attention(num_key_value_heads=1, head_dim=32)
        assert (found.num_key_value_heads, found.head_dim) == (1, 32)

    @pytest.mark.parametrize(
        ("model_type", "fields", "biases"),
        [
            ("llama", {}, (False, False)),
            ("llama", {"attention_bias": True}, (True, True)),
            ("qwen2", {}, (True, False)),
            ("qwen3", {"attention_bias": True}, (True, True)),
            ("glm4", {}, (True, False)),
            ("glm4", {"attention_bias": False}, (False, False)),
            ("mistral", {"attention_bias": True}, (False, False)),
            ("phi", {}, (True, True)),
        ],
    )
    def test_biases(self, model_type: str, fields: dict[str, Any], biases: tuple[bool, bool]) -> None:
        found = attention(model_type=model_type, head_dim=8, **fields)
        assert (found.bias, found.output_bias) == biases

    @pytest.mark.parametrize(("model_type", "has"), [("llama", False), ("qwen3", True), ("gemma3_text", True)])
    def test_norms_of_queries_and_keys(self, model_type: str, *, has: bool) -> None:
        assert attention(model_type=model_type).qk_norm is has

    def test_gpt_oss_has_sinks(self) -> None:
        found = load_model("gpt-oss-120b").attention
        assert isinstance(found, Gqa)
        assert (found.sinks, found.bias, found.output_bias) == (True, True, True)


class TestWindows:
    def test_mistral_slides_everywhere_by_default_and_nowhere_with_null(self) -> None:
        assert windows(model_type="mistral") == [4096] * 6
        assert windows(model_type="mistral", sliding_window=None) == [None] * 6

    def test_phi_3_and_mixtral_slide_only_if_told(self) -> None:
        assert windows(model_type="phi3") == [None] * 6
        assert windows(model_type="phi3", sliding_window=2047) == [2047] * 6
        assert windows(model_type="mixtral") == [None] * 6

    def test_qwen_slides_late_and_only_if_it_uses_windows(self) -> None:
        told = {"sliding_window": 32, "max_window_layers": 4}
        assert windows(model_type="qwen3", **told) == [None] * 6
        assert windows(model_type="qwen3", use_sliding_window=True, **told) == [None] * 4 + [32] * 2

    def test_qwen_2_moe_slides_on_even_layers_below_the_limit(self) -> None:
        told = {"sliding_window": 32, "max_window_layers": 4, "use_sliding_window": True}
        assert windows(model_type="qwen2_moe", **told) == [32, None, 32, None, None, None]

    def test_a_window_of_0_is_none(self) -> None:
        assert windows(model_type="qwen2_moe", sliding_window=0) == [None] * 6

    def test_gemma_2_and_gpt_oss_alternate_and_begin_with_a_window(self) -> None:
        assert windows(model_type="gemma2") == [4096, None] * 3
        assert [layer.window for layer in load_model("gpt-oss-120b").layers] == [128, None] * 18

    def test_gemma_3_looks_at_everything_on_every_sixth_layer(self) -> None:
        assert windows(model_type="gemma3_text", sliding_window=1024) == [1024] * 5 + [None]
        assert windows(model_type="gemma3_text", sliding_window_pattern=3) == [4096, 4096, None] * 2

    def test_layer_types_decide(self) -> None:
        kinds = ["full_attention", "sliding_attention"] * 3
        assert windows(model_type="gemma2", layer_types=kinds, sliding_window=8) == [None, 8] * 3


class TestExperts:
    def test_mixtral(self) -> None:
        found = load_model("mixtral-8x7b")
        assert found.experts == Experts(routed=8, per_token=2, intermediate_size=14336)
        assert len(found.expert_layers) == 32

    def test_qwen_3_moe_has_no_shared_expert(self) -> None:
        found = load_model("qwen3-235b-a22b")
        assert found.experts == Experts(routed=128, per_token=8, intermediate_size=1536)

    def test_qwen_2_moe_has_one_with_a_gate(self) -> None:
        found = read_config(published_configs.QWEN_1_5_MOE).experts
        assert found == Experts(
            routed=60, per_token=4, intermediate_size=1408, shared=1, shared_intermediate_size=5632, shared_gate=True
        )

    def test_sparse_steps_and_layers_that_are_named_dense(self) -> None:
        config = {**published_configs.QWEN_1_5_MOE, "num_hidden_layers": 8, "decoder_sparse_step": 2}
        assert read_config(config).expert_layers == (1, 3, 5, 7)
        assert read_config({**config, "mlp_only_layers": [3]}).expert_layers == (1, 5, 7)

    def test_both_names_of_the_number_of_experts(self) -> None:
        config = dict(published_configs.QWEN_1_5_MOE)
        config["num_local_experts"] = config.pop("num_experts")
        assert read_config(config).experts == read_config(published_configs.QWEN_1_5_MOE).experts

    def test_deepseek_moe_has_two_shared_and_one_dense_layer(self) -> None:
        found = read_config(published_configs.DEEPSEEK_MOE_16B)
        assert found.experts is not None
        assert (found.experts.shared, found.experts.shared_intermediate_size) == (2, 2816)
        assert (found.dense_layers, len(found.expert_layers)) == ((0,), 27)
        assert not found.experts.router_bias

    def test_moe_layer_freq(self) -> None:
        found = read_config({**published_configs.DEEPSEEK_MOE_16B, "num_hidden_layers": 7, "moe_layer_freq": 3})
        assert found.expert_layers == (3, 6)

    def test_deepseek_v3_keeps_4_of_8_groups_and_corrects_the_choice(self) -> None:
        found = load_model("deepseek-v3").experts
        assert found is not None
        assert (found.groups, found.groups_kept, found.router_bias) == (8, 4, True)

    def test_glm_4_5(self) -> None:
        found = read_config(published_configs.GLM_4_5)
        assert found.experts is not None
        assert (found.experts.routed, found.experts.shared, found.dense_layers) == (160, 1, (0, 1, 2))
        assert (len(found.layers), found.mtp_layers) == (92, 1)


class TestLatentAttention:
    def test_v2_lite_projects_queries_directly_and_has_no_router_bias(self) -> None:
        found = read_config(published_configs.DEEPSEEK_V2_LITE)
        assert isinstance(found.attention, Mla)
        assert found.attention.q_lora_rank is None
        assert found.experts is not None
        assert not found.experts.router_bias

    @pytest.mark.parametrize(("model", "heads"), [("glm-5", 32), ("deepseek-v3.2", 64)])
    def test_sparse_index(self, model: str, heads: int) -> None:
        found = load_model(model)
        assert found.sparse_index == SparseIndex(num_heads=heads, head_dim=128, topk=2048)
        assert found.indexed_layers == tuple(range(len(found.layers)))

    @pytest.mark.parametrize("model", ["deepseek-v3", "kimi-k2"])
    def test_without_one(self, model: str) -> None:
        found = load_model(model)
        assert (found.sparse_index, found.indexed_layers) == (None, ())

    @pytest.mark.parametrize(
        ("fields", "indexed"),
        [
            ({"index_topk_freq": 4}, (0, 1, 5)),  # every fourth from layer 1 on; before it every layer
            ({"index_topk_freq": 2, "index_skip_topk_offset": 3}, (0, 1, 2, 4, 6)),
            ({"index_topk_pattern": "FSSFSSF"}, (0, 3, 6)),
            ({"indexer_types": ["full"] + ["shared"] * 6}, (0,)),
        ],
    )
    def test_layers_that_share_an_index(self, fields: dict[str, Any], indexed: tuple[int, ...]) -> None:
        config = {"model_type": "glm_moe_dsa", "num_hidden_layers": 7, **fields}
        assert read_config(config).indexed_layers == indexed

    def test_multi_token_prediction_is_not_among_the_layers(self) -> None:
        assert [(len(m.layers), m.mtp_layers) for m in map(load_model, ("glm-5", "kimi-k2"))] == [(78, 1), (61, 0)]


class TestWrappersAndDefaults:
    def test_the_language_model_of_a_multimodal_one_is_read_with_its_kinds_defaults(self) -> None:
        found = read_config(published_configs.GEMMA_3_4B)
        assert isinstance(found.attention, Gqa)
        assert (found.num_attention_heads, found.attention.num_key_value_heads) == (8, 4)
        assert (found.vocab_size, found.tie_word_embeddings, len(found.layers)) == (262_208, True, 34)
        wrapped, sizes = found.notes
        assert wrapped.startswith("only the language model of Gemma3ForConditionalGeneration is known")
        assert sizes.endswith(
            "for gemma3_text: num_attention_heads 8, num_key_value_heads 4, head_dim 256, vocab_size 262208"
        )

    def test_a_text_config_without_a_kind_has_the_wrappers(self) -> None:
        config = {"model_type": "kimi_k25", "text_config": {"num_hidden_layers": 2}, "tie_word_embeddings": False}
        assert isinstance(read_config(config).attention, Mla)

    def test_tying_can_stand_outside_the_text_config(self) -> None:
        config = {"model_type": "llava", "text_config": LLAMA}
        assert read_config({**config, "tie_word_embeddings": True}).tie_word_embeddings
        assert not read_config(config).tie_word_embeddings

    @pytest.mark.parametrize(("model_type", "tied"), [("llama", False), ("gemma", True), ("gemma2", True)])
    def test_tying_by_default(self, model_type: str, *, tied: bool) -> None:
        assert read_config({**LLAMA, "model_type": model_type}).tie_word_embeddings is tied


class TestUnknownArchitectures:
    CONFIG: dict[str, Any] = {**LLAMA, "architectures": ["NewForCausalLM"], "model_type": "new"}  # noqa: RUF012

    def test_generic_fields_are_read_and_it_is_said(self) -> None:
        found = read_config(self.CONFIG)
        assert (found.hidden_size, len(found.layers), found.experts) == (64, 6, None)
        (note,) = found.notes
        assert note.startswith("NewForCausalLM is not a known architecture: its layers are taken to be Llama's")

    def test_with_experts(self) -> None:
        found = read_config({**self.CONFIG, "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 24})
        assert found.experts == Experts(routed=16, per_token=2, intermediate_size=24)
        assert len(found.expert_layers) == 6

    def test_with_latent_attention(self) -> None:
        latent = {"q_lora_rank": 8, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
        found = read_config({**self.CONFIG, **latent})
        assert isinstance(found.attention, Mla)
        assert "DeepSeek-V3's" in found.notes[0]

    def test_no_default_is_made_up(self) -> None:
        config = {name: value for name, value in self.CONFIG.items() if name != "vocab_size"}
        with pytest.raises(UsageError, match="the config does not tell vocab_size"):
            read_config(config)
