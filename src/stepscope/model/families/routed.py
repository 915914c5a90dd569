"""Experts behind a router: Mixtral, Qwen2-MoE, Qwen3-MoE, gpt-oss, GLM-4.5, DeepSeek-MoE, Phi-3.5-MoE."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stepscope.errors import UsageError
from stepscope.model.families.dense import read_attention, read_dense, windows
from stepscope.model.families.fields import MOST_EXPERTS, MOST_LAYERS, MOST_WIDTH, short
from stepscope.model.spec import Experts, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.model.families.fields import Fields


def read_mixtral(fields: Fields, architecture: str) -> ModelSpec:
    """Read Mixtral: every layer routes; `intermediate_size` is an expert's."""
    model = read_dense(fields, architecture, read_attention(fields), windows(fields, lambda _: True))
    return _with_experts(model, [True] * fields.layers, experts(fields, "intermediate_size"))


def read_phimoe(fields: Fields, architecture: str) -> ModelSpec:
    """Read Phi-3.5-MoE: Mixtral with LayerNorm and biases."""
    bias = fields.flag("attention_bias")
    attention = read_attention(fields, bias=bias, output_bias=bias)
    model = read_dense(fields, architecture, attention, windows(fields, lambda _: True))
    model = msgspec.structs.replace(model, norm_bias=True, lm_head_bias=fields.flag("lm_head_bias"))
    return _with_experts(model, [True] * fields.layers, experts(fields, "intermediate_size"))


def read_qwen2_moe(fields: Fields, architecture: str) -> ModelSpec:
    """Read Qwen2-MoE: a shared expert with a gate; windows on even layers below `max_window_layers`, if at all."""
    below = fields.count("max_window_layers", MOST_LAYERS)
    sliding = windows(fields, lambda layer: fields.flag("use_sliding_window") and layer % 2 == 0 and layer < below)
    model = read_dense(fields, architecture, read_attention(fields, bias=fields.flag("qkv_bias")), sliding)
    shared = fields.count("shared_expert_intermediate_size", MOST_WIDTH)
    found = experts(fields, "moe_intermediate_size", shared=1 if shared else 0, shared_size=shared, shared_gate=True)
    return _with_experts(model, _sparse_layers(fields), found)


def read_qwen3_moe(fields: Fields, architecture: str) -> ModelSpec:
    """Read Qwen3-MoE: norms of queries and keys, no shared expert; one window for all layers, if any."""
    bias = fields.flag("attention_bias")
    attention = read_attention(fields, bias=bias, output_bias=bias, qk_norm=True)
    sliding = windows(fields, lambda _: fields.flag("use_sliding_window"))
    model = read_dense(fields, architecture, attention, sliding)
    return _with_experts(model, _sparse_layers(fields), experts(fields, "moe_intermediate_size"))


def read_gpt_oss(fields: Fields, architecture: str) -> ModelSpec:
    """Read gpt-oss: biases everywhere, attention sinks, a window on every other layer."""
    bias = fields.flag("attention_bias")
    attention = read_attention(fields, bias=bias, output_bias=bias, sinks=True)
    model = read_dense(fields, architecture, attention, windows(fields))
    found = experts(fields, "intermediate_size", bias=True, router_bias=True)
    return _with_experts(model, [True] * fields.layers, found)


def read_glm4_moe(fields: Fields, architecture: str) -> ModelSpec:
    """Read GLM-4.5 to 4.7: leading dense layers, then experts chosen as in DeepSeek-V3."""
    attention = read_attention(fields, bias=fields.flag("attention_bias"), qk_norm=fields.flag("use_qk_norm"))
    model = read_dense(fields, architecture, attention, windows(fields))
    mtp = fields.count("num_nextn_predict_layers", MOST_LAYERS)
    model = msgspec.structs.replace(model, mtp_layers=mtp)
    return _with_experts(model, is_routed_after_dense(fields), grouped_experts(fields, router_bias=True))


def read_deepseek(fields: Fields, architecture: str) -> ModelSpec:
    """Read DeepSeek-MoE, the first: Llama's attention, shared and finely cut experts."""
    bias = fields.flag("attention_bias")
    attention = read_attention(fields, bias=bias, output_bias=bias)
    model = read_dense(fields, architecture, attention, windows(fields))
    routed = is_routed_after_dense(fields)
    return _with_experts(model, routed, grouped_experts(fields, router_bias=False) if any(routed) else None)


def experts(  # noqa: PLR0913 -- what tells the families apart
    fields: Fields,
    width: str,
    *,
    shared: int = 0,
    shared_size: int = 0,
    shared_gate: bool = False,
    bias: bool = False,
    router_bias: bool = False,
) -> Experts:
    """Read the routed experts; `width` names the field of an expert's inner width."""
    routed = fields.size(fields.first_told("n_routed_experts", "num_experts", "num_local_experts"), MOST_EXPERTS)
    per_token = fields.size("num_experts_per_tok", MOST_EXPERTS)
    groups = fields.count("n_group", MOST_EXPERTS) or 1
    kept = fields.count("topk_group", MOST_EXPERTS) or 1
    if per_token > routed:
        raise UsageError(f"the config sends a token to {per_token} experts, but there are {routed}")
    if routed % groups or kept > groups:
        raise UsageError(f"the config's {routed} experts do not make {groups} equal groups of which {kept} are kept")
    return Experts(
        routed=routed,
        per_token=per_token,
        intermediate_size=fields.size(width),
        shared=shared,
        shared_intermediate_size=shared_size,
        shared_gate=shared_gate and shared > 0,
        bias=bias,
        router_bias=router_bias,
        groups=groups,
        groups_kept=kept,
    )


def grouped_experts(fields: Fields, *, router_bias: bool) -> Experts:
    """Read experts as DeepSeek's configs describe them: shared ones have a routed one's width each."""
    shared = fields.count("n_shared_experts", MOST_EXPERTS)
    size = shared * fields.size("moe_intermediate_size")
    return experts(fields, "moe_intermediate_size", shared=shared, shared_size=size, router_bias=router_bias)


def is_routed_after_dense(fields: Fields) -> Sequence[bool]:
    """Return which layers route: all but the first `first_k_dense_replace`, or as `mlp_layer_types` says.

    Of those, only every `moe_layer_freq`-th (`DeepseekDecoderLayer`).
    """
    kinds = fields.names("mlp_layer_types", fields.layers)
    if kinds is not None:
        if not set(kinds) <= {"dense", "sparse"}:
            raise UsageError(f"the config's mlp_layer_types are {short(sorted(set(kinds)))}, not dense and sparse")
        return [kind == "sparse" for kind in kinds]
    if not fields.count(fields.first_told("n_routed_experts", "num_experts", "num_local_experts"), MOST_EXPERTS):
        return [False] * fields.layers
    first, every = fields.count("first_k_dense_replace", MOST_LAYERS), fields.get("moe_layer_freq")
    every = 1 if every is None else fields.size("moe_layer_freq", MOST_LAYERS)
    return [layer >= first and layer % every == 0 for layer in range(fields.layers)]


def _sparse_layers(fields: Fields) -> Sequence[bool]:
    """Every `decoder_sparse_step`-th layer routes, except `mlp_only_layers` (`Qwen2MoeDecoderLayer`)."""
    step, dense = fields.size("decoder_sparse_step", MOST_LAYERS), fields.indices("mlp_only_layers")
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(fields.layers)]


def _with_experts(model: ModelSpec, routed: Sequence[bool], found: Experts | None) -> ModelSpec:
    layers = tuple(
        msgspec.structs.replace(layer, has_experts=has) for layer, has in zip(model.layers, routed, strict=True)
    )
    return msgspec.structs.replace(model, layers=layers, experts=found if any(routed) else None)
