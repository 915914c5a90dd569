"""The weights of a model as one rank of a tensor-parallel group holds them, and which of them a shape is."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight that layers of the same kind share in shape."""

    name: str
    shape: tuple[int, ...]
    """As stored on the rank: [out, in], experts first."""
    layers: int
    """Number of layers that have it."""

    @property
    def elements(self) -> int:
        """Elements of one layer's weight."""
        return prod(self.shape)


def rank_weights(spec: ModelSpec, tp: int) -> tuple[Weight, ...]:
    """Return the weights on one rank of a tensor-parallel group of size `tp`.

    Heads, the experts' and MLPs' inner width and the vocabulary are split; the low-rank down-projections and the
    router are on every rank. `w_kc` and `w_vc` are the halves of `kv_b_proj` that absorbed MLA multiplies by.

    Raises:
        UsageError: the model's heads or widths do not divide by `tp`.
    """
    for field in ("num_attention_heads", "moe_intermediate_size", "intermediate_size", "vocab_size"):
        if getattr(spec, field) % tp:
            raise UsageError(f"--tp {tp}: the model's {field}, {getattr(spec, field)}, does not divide by it")
    return tuple(_weights(spec, tp))


def match_weight(weights: Sequence[Weight], shape: Sequence[int]) -> Weight | None:
    """Return the weight that has this shape, else one whose transpose has it; axes of length 1 do not count."""
    squeezed = tuple(size for size in shape if size != 1)
    exact = (weight for weight in weights if squeezed == weight.shape)
    transposed = (weight for weight in weights if squeezed == weight.shape[:-2] + weight.shape[:-3:-1])
    return next(exact, None) or next(transposed, None)


def match_elements(weights: Sequence[Weight], low: int, high: int) -> Weight | None:
    """Return the weight whose element count lies in [low, high], if there is one."""
    return next((weight for weight in weights if low <= weight.elements <= high), None)


def _weights(spec: ModelSpec, tp: int) -> Iterator[Weight]:
    layers, heads, hidden = spec.num_hidden_layers, spec.num_attention_heads // tp, spec.hidden_size
    query, latent = spec.q_lora_rank, spec.kv_lora_rank
    nope, rope, value = spec.qk_nope_head_dim, spec.qk_rope_head_dim, spec.v_head_dim
    yield Weight("q_a_proj", (query, hidden), layers)
    yield Weight("q_b_proj", (heads * (nope + rope), query), layers)
    yield Weight("kv_a_proj", (latent + rope, hidden), layers)
    yield Weight("fused_qkv_a_proj", (query + latent + rope, hidden), layers)
    yield Weight("kv_b_proj", (heads * (nope + value), latent), layers)
    yield Weight("w_kc", (heads, nope, latent), layers)
    yield Weight("w_vc", (heads, latent, value), layers)
    yield Weight("o_proj", (hidden, heads * value), layers)
    experts, inner = spec.n_routed_experts, spec.moe_intermediate_size // tp
    yield Weight("w13", (experts, 2 * inner, hidden), spec.moe_layers)
    yield Weight("w2", (experts, hidden, inner), spec.moe_layers)
    yield Weight("router", (experts, hidden), spec.moe_layers)
    shared = spec.n_shared_experts * inner
    if shared:
        yield Weight("shared_w13", (2 * shared, hidden), spec.moe_layers)
        yield Weight("shared_w2", (hidden, shared), spec.moe_layers)
    dense = spec.intermediate_size // tp
    yield Weight("dense_w13", (2 * dense, hidden), spec.first_k_dense_replace)
    yield Weight("dense_w2", (hidden, dense), spec.first_k_dense_replace)
    yield Weight("lm_head", (spec.vocab_size // tp, hidden), 1)
