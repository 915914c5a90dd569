"""Architectures that are not known: the fields that most configs share, read as Llama's would be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stepscope.errors import UsageError
from stepscope.model.families.dense import read_attention, read_llama
from stepscope.model.families.fields import MOST_WIDTH, short
from stepscope.model.families.latent import read_latent
from stepscope.model.families.routed import experts, is_routed_after_dense

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stepscope.model.families.fields import Fields
    from stepscope.model.spec import ModelSpec

_RECURRENT_TYPES = frozenset(
    {
        "bamba",
        "falcon_h1",
        "falcon_mamba",
        "granitemoehybrid",
        "jamba",
        "kimi_linear",
        "lfm2",
        "lfm2_moe",
        "mamba",
        "mamba2",
        "minimax",
        "minimax_m1",
        "minimax_text_01",
        "nemotron_h",
        "olmo_hybrid",
        "plamo2",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "recurrent_gemma",
        "rwkv",
        "xlstm",
        "zamba",
        "zamba2",
    }
)
_RECURRENT_FIELDS = frozenset(
    {
        "attn_layer_period",
        "attn_type_list",
        "hybrid_override_pattern",
        "layers_block_type",
        "linear_attn_config",
        "linear_num_key_heads",
        "lru_width",
        "mamba_d_state",
        "mamba_n_heads",
        "ssm_cfg",
        "ssm_state_size",
    }
)
"""What only configs of models with a state-space or linear-attention part have, whatever they are called."""

_ATTENTION_KINDS = frozenset({"full_attention", "sliding_attention", "chunked_attention", "indexed_attention"})


def refuse_recurrent(config: Mapping[str, Any], model_type: str | None, architecture: str) -> None:
    """Refuse models whose layers keep a state instead of keys and values, and encoders with a decoder.

    Raises:
        UsageError: the config is one of theirs.
    """
    kinds = config.get("layer_types")
    others = {k for k in kinds if isinstance(k, str)} - _ATTENTION_KINDS if isinstance(kinds, list) else set()
    if model_type in _RECURRENT_TYPES or not _RECURRENT_FIELDS.isdisjoint(config) or others:
        with_kinds = f" ({short(sorted(others))})" if others else ""
        raise UsageError(
            f"{architecture} has layers that are no attention{with_kinds}: state-space and linear-attention models are "
            "not modelled"
        )
    if config.get("is_encoder_decoder") is True:
        raise UsageError(f"{architecture} has an encoder and a decoder; only decoders are modelled")


def read_generic(fields: Fields, architecture: str) -> ModelSpec:
    """Read an architecture that is not known from the fields that most share, and note so."""
    is_latent = fields.get("kv_lora_rank") is not None
    model = read_latent(fields, architecture) if is_latent else _by_head(fields, architecture)
    kind = "DeepSeek-V3's" if is_latent else "Llama's"
    note = f"{architecture} is not a known architecture: its layers are taken to be {kind}, of the sizes in its config"
    return msgspec.structs.replace(model, notes=(note,))


def _by_head(fields: Fields, architecture: str) -> ModelSpec:
    model = read_llama(fields, architecture)
    bias = fields.flag("attention_bias")
    norm = any(fields.get(name) is True for name in ("use_qk_norm", "qk_layernorm", "qk_norm"))
    attention = read_attention(fields, bias=bias or fields.get("qkv_bias") is True, output_bias=bias, qk_norm=norm)
    model = msgspec.structs.replace(model, attention=attention)
    routed = is_routed_after_dense(fields)
    if not any(routed):
        return model
    width = fields.first_told("moe_intermediate_size", "intermediate_size")
    shared = fields.count("n_shared_experts", 1000)
    shared_size = fields.count("shared_expert_intermediate_size", MOST_WIDTH) or shared * fields.size(width)
    found = experts(fields, width, shared=shared or int(shared_size > 0), shared_size=shared_size)
    layers = tuple(
        msgspec.structs.replace(layer, has_experts=has) for layer, has in zip(model.layers, routed, strict=True)
    )
    return msgspec.structs.replace(model, layers=layers, experts=found)
