"""Latent attention: DeepSeek-V2, V3 and V3.2, Kimi-K2, GLM-5, GLM-4.7-Flash."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.model.families.fields import MOST_LAYERS, short
from stepscope.model.families.routed import grouped_experts, is_routed_after_dense
from stepscope.model.spec import Layer, Mla, ModelSpec, SparseIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.model.families.fields import Fields


def read_latent(fields: Fields, architecture: str) -> ModelSpec:
    """Read a model with multi-head latent attention, leading dense layers, then experts; with or without an index."""
    index = _sparse_index(fields)
    indexed = _indexed_layers(fields) if index else [False] * fields.layers
    routed = is_routed_after_dense(fields)
    return ModelSpec(
        architecture=architecture,
        hidden_size=fields.size("hidden_size"),
        vocab_size=fields.size("vocab_size"),
        num_attention_heads=fields.size("num_attention_heads"),
        attention=Mla(
            q_lora_rank=fields.size_or_none("q_lora_rank"),
            kv_lora_rank=fields.size("kv_lora_rank"),
            qk_nope_head_dim=fields.size("qk_nope_head_dim"),
            qk_rope_head_dim=fields.size("qk_rope_head_dim"),
            v_head_dim=fields.size("v_head_dim"),
            bias=fields.flag("attention_bias"),
        ),
        layers=tuple(Layer(has_experts=routed[i], has_index=indexed[i]) for i in range(fields.layers)),
        intermediate_size=fields.size("intermediate_size"),
        experts=grouped_experts(fields, router_bias=fields.get("topk_method") == "noaux_tc") if any(routed) else None,
        sparse_index=index,
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        mtp_layers=fields.count("num_nextn_predict_layers", MOST_LAYERS),
    )


def _sparse_index(fields: Fields) -> SparseIndex | None:
    if fields.size_or_none("index_topk") is None:
        return None
    return SparseIndex(
        num_heads=fields.size("index_n_heads"), head_dim=fields.size("index_head_dim"), topk=fields.size("index_topk")
    )


def _indexed_layers(fields: Fields) -> Sequence[bool]:
    """Return which layers choose tokens themselves; the others read what the one before chose.

    `indexer_types` names each layer `full` or `shared`, `index_topk_pattern` writes the same as a word of F and S, and
    `index_topk_freq` gives every so many layers an index, from layer `index_skip_topk_offset` − 1 on
    (`GlmMoeDsaConfig`).
    """
    kinds = fields.names("indexer_types", fields.layers)
    pattern = fields.get("index_topk_pattern")
    if kinds is None and pattern is not None:
        if not isinstance(pattern, str) or len(pattern) != fields.layers:
            raise UsageError(
                f"the config's index_topk_pattern is {short(pattern)}, not a letter for each of {fields.layers} layers"
            )
        kinds = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    if kinds is not None:
        if not set(kinds) <= {"full", "shared"}:
            raise UsageError(f"the config's indexer_types are {short(sorted(set(kinds)))}, not full and shared")
        return [kind == "full" for kind in kinds]
    every = max(fields.count("index_topk_freq", MOST_LAYERS), 1)
    offset = fields.count("index_skip_topk_offset", MOST_LAYERS) if fields.get("index_skip_topk_offset") else 2
    return [max(layer - offset + 1, 0) % every == 0 for layer in range(fields.layers)]
