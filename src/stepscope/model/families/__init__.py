"""Hugging Face configs → `ModelSpec`: one reader a family of architectures, the defaults of each as data."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.model.families import dense, routed
from stepscope.model.families.fields import Fields, name_of
from stepscope.model.families.generic import read_generic, refuse_recurrent
from stepscope.model.families.latent import read_latent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.model.spec import ModelSpec

    Reader = Callable[[Fields, str], ModelSpec]

_READERS: Mapping[str, Reader] = {
    "deepseek": routed.read_deepseek,
    "deepseek_v2": read_latent,
    "deepseek_v3": read_latent,
    "deepseek_v32": read_latent,
    "gemma": dense.read_gemma,
    "gemma2": dense.read_gemma2,
    "gemma3_text": dense.read_gemma3,
    "glm": dense.read_glm,
    "glm4": dense.read_glm4,
    "glm4_moe": routed.read_glm4_moe,
    "glm4_moe_lite": read_latent,
    "glm_moe_dsa": read_latent,
    "gpt_oss": routed.read_gpt_oss,
    "llama": dense.read_llama,
    "mistral": dense.read_mistral,
    "mixtral": routed.read_mixtral,
    "phi": dense.read_phi,
    "phi3": dense.read_mistral,
    "phimoe": routed.read_phimoe,
    "qwen2": dense.read_qwen2,
    "qwen2_moe": routed.read_qwen2_moe,
    "qwen3": dense.read_qwen3,
    "qwen3_moe": routed.read_qwen3_moe,
}
_SAME_AS = {
    "gemma3": "gemma3_text",
    "glm4v_moe_text": "glm4_moe",
    "glm4v_text": "glm4",
    "kimi_k2": "deepseek_v3",
    "kimi_k25": "deepseek_v3",
    "llava": "llama",
    "mistral3": "mistral",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
}
"""Kinds whose language model is built as another's; multimodal ones also where `text_config` tells no kind."""

_LANGUAGE_PARTS = ("text_config", "language_config", "llm_config")


def read_config(config: Mapping[str, Any]) -> ModelSpec:
    """Return the model that a config describes.

    A field that the file does not tell is what transformers' config class would hold; sizes found so are noted. Of a
    multimodal model the language model is read.

    Raises:
        UsageError: a field is missing, of the wrong type or out of range, or the model is of a kind not modelled.
    """
    whole = config
    architecture = name_of(config, "architectures") or name_of(config, "model_type") or "the model"
    model_type = name_of(config, "model_type")
    part = next((name for name in _LANGUAGE_PARTS if isinstance(config.get(name), dict)), None)
    if part is not None:
        config = config[part]
        model_type = name_of(config, "model_type") or model_type
        if "tie_word_embeddings" not in config and "tie_word_embeddings" in whole:
            config = {**config, "tie_word_embeddings": whole["tie_word_embeddings"]}
    refuse_recurrent(config, model_type, architecture)
    kind = _SAME_AS.get(model_type or "", model_type or "")
    fields = Fields(config, _defaults().get(kind, {}))
    model = _READERS.get(kind, read_generic)(fields, architecture)
    notes = list(model.notes)
    if part is not None:
        notes.append(f"only the language model of {architecture} is known; what reads images or sound is left out")
    if fields.assumed:
        told = ", ".join(f"{name} {fields.defaults[name]}" for name in dict.fromkeys(fields.assumed))
        notes.append(f"the config does not tell all sizes; taken from transformers' defaults for {kind}: {told}")
    return msgspec.structs.replace(model, notes=tuple(notes))


@cache
def _defaults() -> Mapping[str, Mapping[str, Any]]:
    text = (resources.files("stepscope.model.families") / "defaults.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, dict[str, Any]])
