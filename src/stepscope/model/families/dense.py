"""Keys and values by head and dense MLPs: Llama, Mistral, Qwen2, Qwen3, Gemma, Phi, GLM-4."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stepscope.errors import UsageError
from stepscope.model.families.fields import MOST_LAYERS, short
from stepscope.model.spec import Gqa, Layer, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.model.families.fields import Fields

_MOST_HEADS = 2**16


def read_llama(fields: Fields, architecture: str) -> ModelSpec:
    """Read Llama, and what is built as Llama is."""
    bias = fields.flag("attention_bias")
    model = read_dense(fields, architecture, read_attention(fields, bias=bias, output_bias=bias), windows(fields))
    return msgspec.structs.replace(model, mlp_bias=fields.flag("mlp_bias"))


def read_mistral(fields: Fields, architecture: str) -> ModelSpec:
    """Read Mistral or Phi-3: no bias; one window for all layers, if any."""
    return read_dense(fields, architecture, read_attention(fields), windows(fields, lambda _: True))


def read_qwen2(fields: Fields, architecture: str) -> ModelSpec:
    """Read Qwen2 or 2.5: biases of queries, keys and values."""
    return read_dense(fields, architecture, read_attention(fields, bias=True), _late_windows(fields))


def read_qwen3(fields: Fields, architecture: str) -> ModelSpec:
    """Read Qwen3: norms of queries and keys."""
    bias = fields.flag("attention_bias")
    attention = read_attention(fields, bias=bias, output_bias=bias, qk_norm=True)
    return read_dense(fields, architecture, attention, _late_windows(fields))


def read_gemma(fields: Fields, architecture: str) -> ModelSpec:
    """Read the first Gemma: heads wider than the hidden size over their number."""
    bias = fields.flag("attention_bias")
    return read_dense(fields, architecture, read_attention(fields, bias=bias, output_bias=bias), windows(fields))


def read_gemma2(fields: Fields, architecture: str) -> ModelSpec:
    """Read Gemma 2: norms also after each block, a window on every other layer."""
    return msgspec.structs.replace(read_gemma(fields, architecture), layer_norms=_GEMMA_NORMS)


def read_gemma3(fields: Fields, architecture: str) -> ModelSpec:
    """Read Gemma 3: as Gemma 2, norms of queries and keys, a window on five layers of six."""
    model = read_gemma2(fields, architecture)
    bias = fields.flag("attention_bias")
    attention = read_attention(fields, bias=bias, output_bias=bias, qk_norm=True)
    return msgspec.structs.replace(model, attention=attention)


def read_phi(fields: Fields, architecture: str) -> ModelSpec:
    """Read Phi-1, 1.5 or 2: attention and an MLP without gate beside each other, biases everywhere."""
    attention = read_attention(fields, bias=True, output_bias=True, qk_norm=fields.flag("qk_layernorm"))
    return msgspec.structs.replace(
        read_dense(fields, architecture, attention, windows(fields)),
        gated_mlp=False,
        mlp_bias=True,
        layer_norms=("input_norm",),
        norm_bias=True,
        lm_head_bias=True,
    )


def read_glm(fields: Fields, architecture: str) -> ModelSpec:
    """Read GLM-4-9B as transformers publishes it: biases of queries, keys and values."""
    attention = read_attention(fields, bias=fields.flag("attention_bias"))
    return read_dense(fields, architecture, attention, windows(fields))


def read_glm4(fields: Fields, architecture: str) -> ModelSpec:
    """Read GLM-4-0414: norms also after each block."""
    norms = ("input_norm", "post_self_attn_norm", "post_attention_norm", "post_mlp_norm")
    return msgspec.structs.replace(read_glm(fields, architecture), layer_norms=norms)


_GEMMA_NORMS = ("input_norm", "post_attention_norm", "pre_feedforward_norm", "post_feedforward_norm")


def read_attention(
    fields: Fields, *, bias: bool = False, output_bias: bool = False, qk_norm: bool = False, sinks: bool = False
) -> Gqa:
    """Read heads: as many of keys as of queries where not told, and `hidden_size` over their number wide."""
    heads = fields.size("num_attention_heads", _MOST_HEADS)
    keys = fields.size_or_none("num_key_value_heads", _MOST_HEADS) or heads
    width = fields.size_or_none("head_dim", 2**16)
    if heads % keys:
        raise UsageError(f"the config's {heads} attention heads do not share {keys} heads of keys and values evenly")
    if width is None:
        hidden = fields.size("hidden_size")
        width, rest = divmod(hidden, heads)
        if rest:
            raise UsageError(f"the config's hidden_size, {hidden}, does not divide by its {heads} attention heads")
    return Gqa(
        num_key_value_heads=keys, head_dim=width, bias=bias, output_bias=output_bias, qk_norm=qk_norm, sinks=sinks
    )


def read_dense(fields: Fields, architecture: str, attention: Gqa, sliding: Sequence[int | None]) -> ModelSpec:
    """Read what all these models share; `sliding` holds each layer's window."""
    return ModelSpec(
        architecture=architecture,
        hidden_size=fields.size("hidden_size"),
        vocab_size=fields.size("vocab_size"),
        num_attention_heads=fields.size("num_attention_heads", _MOST_HEADS),
        attention=attention,
        layers=tuple(Layer(has_experts=False, window=window) for window in sliding),
        intermediate_size=fields.size("intermediate_size"),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
    )


def windows(fields: Fields, slides: Callable[[int], bool] | None = None) -> Sequence[int | None]:
    """Return each layer's window.

    `layer_types` decides; without it `slides`, by layer; without both `sliding_window_pattern`: all but every so
    manieth layer slide, and none where there is no pattern.
    """
    window, layers = fields.window(), fields.layers
    kinds = fields.names("layer_types", layers)
    if kinds is not None:
        unknown = set(kinds) - {"full_attention", "sliding_attention"}
        if unknown:
            raise UsageError(f"the config's layer_types name {short(sorted(unknown))}, which is not modelled")
        return [window if kind == "sliding_attention" else None for kind in kinds]
    if slides is None:
        pattern = fields.count("sliding_window_pattern", MOST_LAYERS)
        return [window if pattern and (layer + 1) % pattern else None for layer in range(layers)]
    return [window if slides(layer) else None for layer in range(layers)]


def _late_windows(fields: Fields) -> Sequence[int | None]:
    """Layers from `max_window_layers` on slide, if `use_sliding_window` (`Qwen2Config`)."""
    first = fields.count("max_window_layers", MOST_LAYERS)
    return windows(fields, lambda layer: fields.flag("use_sliding_window") and layer >= first)
