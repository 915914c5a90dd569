"""Configs that are refused, each with one sentence: models of other kinds, and files that are no honest config."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model import published_configs

from stepscope.errors import ExitCode, UsageError
from stepscope.model import Parallel, Weight, load_model, rank_weights, read_config

if TYPE_CHECKING:
    from pathlib import Path

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "vocab_size": 128,
}


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mamba", "hidden_size": 768},
        {"model_type": "jamba", "attn_layer_period": 8},
        {**LLAMA, "model_type": "falcon_h1"},
        {**LLAMA, "model_type": "bamba"},
        {**LLAMA, "model_type": "zamba2"},
        {**LLAMA, "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*"},
        {**LLAMA, "model_type": "granitemoehybrid"},
        {**LLAMA, "model_type": "qwen3_next"},
        {**LLAMA, "model_type": "minimax"},
        {**LLAMA, "model_type": "kimi_linear", "linear_attn_config": {}},
        {**LLAMA, "model_type": "rwkv"},
        {**LLAMA, "model_type": "another", "mamba_d_state": 16},
        {**LLAMA, "model_type": "another", "layer_types": ["linear_attention"] * 5 + ["full_attention"]},
        {"model_type": "wrapper", "text_config": {**LLAMA, "model_type": "qwen3_next"}},
    ],
)
def test_state_space_and_linear_attention_models(config: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="state-space and linear-attention models are not modelled") as caught:
        read_config({"architectures": ["SomeForCausalLM"], **config})
    assert caught.value.exit_code is ExitCode.WRONG_USAGE
    assert str(caught.value).startswith("SomeForCausalLM has layers that are no attention")


def test_encoders_with_a_decoder() -> None:
    with pytest.raises(UsageError, match="only decoders are modelled"):
        read_config({**LLAMA, "model_type": "t5", "is_encoder_decoder": True})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, which is not between 1 and 10,000"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, which is not between"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1, which is not between"),
        ({"num_hidden_layers": "6"}, "num_hidden_layers is '6', not a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True, not a whole number"),
        ({"hidden_size": 64.0}, "hidden_size is 64.0, not a whole number"),
        ({"hidden_size": 2**60}, "hidden_size is 1152921504606846976, which is not between"),
        ({"hidden_size": [64]}, r"hidden_size is \[64\], not a whole number"),
        ({"hidden_size": 60}, "hidden_size, 60, does not divide by its 8 attention heads"),
        ({"num_key_value_heads": 3}, "8 attention heads do not share 3 heads of keys and values evenly"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"vocab_size": {}}, "vocab_size is {}, not a whole number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', neither true nor false"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers, but there are 6"),
        ({"layer_types": "full_attention"}, "layer_types is 'full_attention', not a list of names"),
        ({"layer_types": [None] * 6}, "not a list of names"),
        ({"sliding_window": -5, "model_type": "mistral"}, "sliding_window is -5, which is not between"),
        ({"architectures": ["\x1b[31mRed"]}, r"architectures is '\\x1b\[31mRed', which is no name"),
        ({"model_type": 7}, "model_type is 7, which is no name"),
        ({"model_type": "a" * 10_000}, "model_type is 'a+\\.\\.\\.a+', which is no name"),
        (
            {"model_type": "mixtral", "num_key_value_heads": 8, "num_experts_per_tok": 9},
            "to 9 experts, but there are 8",
        ),
        ({"model_type": "mixtral", "n_group": 3}, "8 experts do not make 3 equal groups"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [-1]}, "mlp_only_layers is -1"),
        ({"model_type": "glm_moe_dsa", "index_topk_pattern": "FS"}, "not a letter for each of 6 layers"),
        ({"model_type": "glm_moe_dsa", "index_topk_pattern": "FSXFSX"}, "not full and shared"),
        ({"model_type": "glm_moe_dsa", "mlp_layer_types": ["both"] * 6}, "not dense and sparse"),
    ],
)
def test_each_field_is_checked(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        read_config({**LLAMA, **fields})
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 40),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.lists(st.sampled_from([-1, 2, "full", "dense", "full_attention", None]), max_size=7),
    st.dictionaries(st.sampled_from(["hidden_size", "model_type"]), st.integers(0, 9), max_size=2),
)
PUBLISHED = [value for name, value in vars(published_configs).items() if name.isupper()]


@settings(deadline=None)
@given(config=st.sampled_from(PUBLISHED), changes=st.data())
def test_whatever_stands_in_a_field_gives_a_model_or_a_sentence(config: dict[str, Any], changes: st.DataObject) -> None:
    names = [*config, "text_config", "sliding_window_pattern", "index_topk", "mlp_layer_types", "num_experts"]
    mutated = {**config, "num_hidden_layers": 7}
    for name in changes.draw(st.lists(st.sampled_from(names), max_size=4)):
        mutated[name] = changes.draw(VALUES)
    weights: tuple[Weight, ...] = ()
    sentence = ""
    try:
        weights = rank_weights(read_config(mutated), Parallel(2))
    except UsageError as error:
        sentence = str(error)
    assert bool(weights) != bool(sentence)
    assert len(sentence) < 400
    assert all(size > 0 for weight in weights for size in weight.shape)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "Input data was truncated"),
        (b"{", "truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"model_type": "llama", "x": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 50_000, "nested too deeply"),
        (b"\xff\xfe", "malformed"),
        (b'{"hidden_size": 1' + b"0" * 5000 + b"}", "out of range"),
        (b" " * (16 << 20) + b"{}", "larger than 16 MiB"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, text: bytes, sentence: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text)
    with pytest.raises(UsageError, match=sentence) as caught:
        load_model(str(file))
    assert str(caught.value).startswith(f"--model {file}: ")


def test_a_file_and_its_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(published_configs.MISTRAL_7B), "utf-8")
    assert load_model(str(tmp_path)) == load_model(str(tmp_path / "config.json"))
    assert load_model(str(tmp_path)).architecture == "MistralForCausalLM"


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "/dev/null", "/proc/self/mem"])
def test_names_of_no_file(name: str) -> None:
    with pytest.raises(UsageError, match="--model"):
        load_model(name)
