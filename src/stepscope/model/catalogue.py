"""The weights of a model as one rank holds them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.model.formats import BF16, Stored, WeightFormat
from stepscope.model.spec import Gqa, Mla

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.model.parallel import Parallel
    from stepscope.model.spec import Experts, ModelSpec


class Component(StrEnum):
    """What a weight belongs to."""

    ATTENTION = "attention"
    INDEX = "sparse index"
    DENSE_MLP = "dense MLP"
    EXPERTS = "experts"
    SHARED_EXPERT = "shared expert"
    ROUTER = "router"
    NORM = "norms"
    EMBEDDING = "embedding"
    LM_HEAD = "LM head"


LINEAR = (Component.ATTENTION, Component.INDEX, Component.DENSE_MLP, Component.EXPERTS, Component.SHARED_EXPERT)
"""Components whose weights are multiplied by in linear layers that checkpoints quantise."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight that layers of the same kind share in shape."""

    name: str
    component: Component
    shape: tuple[int, ...]
    """Its values on the rank, whatever they are stored as: [out, in], experts first."""
    layers: tuple[int, ...]
    """Indices of the layers that have it; empty for what stands outside the layers."""
    format: WeightFormat = BF16
    is_derived: bool = False
    """Whether it is others joined or a part of one, as engines prepare them: a name for a shape, no further values."""

    @property
    def elements(self) -> int:
        """Elements of one layer's weight."""
        return prod(self.shape)

    @property
    def count(self) -> int:
        """How many of it a rank holds."""
        return max(len(self.layers), 1)

    @property
    def stored(self) -> tuple[Stored, ...]:
        """What is stored for one layer's weight."""
        return self.format.split(self.name, self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of one layer's weight, its scales included."""
        return sum(tensor.bytes for tensor in self.stored)


def rank_weights(
    spec: ModelSpec, parallel: Parallel, formats: Mapping[Component, WeightFormat] | None = None
) -> tuple[Weight, ...]:
    """Return the weights on one rank; what `formats` does not name is BF16.

    Heads, inner widths and the vocabulary are split; the low-rank down-projections, the norms and the router are on
    every rank. `w_kc` and `w_vc` are the halves of `kv_b_proj` that absorbed MLA multiplies by.

    Raises:
        UsageError: the model's heads, widths or experts do not divide by the ranks.
    """
    catalogue = _Catalogue(spec, parallel, formats or {})
    return tuple(catalogue.weights())


def match_weight(weights: Sequence[Weight], shape: Sequence[int]) -> Weight | None:
    """Return the weight that has this shape, else one whose transpose has it; axes of length 1 do not count."""
    squeezed = tuple(size for size in shape if size != 1)
    exact = (weight for weight in weights if squeezed == weight.shape)
    transposed = (weight for weight in weights if squeezed == weight.shape[:-2] + weight.shape[:-3:-1])
    return next(exact, None) or next(transposed, None)


def match_elements(weights: Sequence[Weight], low: int, high: int) -> Weight | None:
    """Return the weight whose element count lies in [low, high], if there is one."""
    return next((weight for weight in weights if low <= weight.elements <= high), None)


@dataclass(frozen=True, slots=True)
class _Catalogue:
    spec: ModelSpec
    parallel: Parallel
    formats: Mapping[Component, WeightFormat]

    def weights(self) -> Iterator[Weight]:
        attention = self.spec.attention
        yield from self._mla(attention) if isinstance(attention, Mla) else self._gqa(attention)
        if self.spec.dense_layers:
            yield from self._mlp(Component.DENSE_MLP, "dense_", self.spec.intermediate_size, self.spec.dense_layers)
        if self.spec.experts is not None:
            yield from self._experts(self.spec.experts)
        hidden, every = self.spec.hidden_size, tuple(range(len(self.spec.layers)))
        yield self._weight("input_norm", Component.NORM, (hidden,), every)
        yield self._weight("post_attention_norm", Component.NORM, (hidden,), every)
        yield self._weight("final_norm", Component.NORM, (hidden,), ())
        embedded = self._share("vocab_size", self.spec.vocab_size, self.parallel.attention_tp)
        yield self._weight("embedding", Component.EMBEDDING, (embedded, hidden), ())
        vocabulary = self._share("vocab_size", self.spec.vocab_size, self.parallel.lm_head_tp)
        tied = self.spec.tie_word_embeddings
        yield self._weight("lm_head", Component.LM_HEAD, (vocabulary, hidden), (), is_derived=tied)

    def _mla(self, mla: Mla) -> Iterator[Weight]:
        hidden, heads = self.spec.hidden_size, self._heads()
        latent, nope, rope, value = mla.kv_lora_rank, mla.qk_nope_head_dim, mla.qk_rope_head_dim, mla.v_head_dim
        if mla.q_lora_rank is None:
            yield self._attention("q_proj", (heads * (nope + rope), hidden))
        else:
            yield self._attention("q_a_proj", (mla.q_lora_rank, hidden))
            yield self._attention("q_b_proj", (heads * (nope + rope), mla.q_lora_rank))
            yield self._attention("fused_qkv_a_proj", (mla.q_lora_rank + latent + rope, hidden), is_derived=True)
            yield self._weight("q_a_norm", Component.NORM, (mla.q_lora_rank,), self._every)
        yield self._attention("kv_a_proj", (latent + rope, hidden))
        yield self._weight("kv_a_norm", Component.NORM, (latent,), self._every)
        yield self._attention("kv_b_proj", (heads * (nope + value), latent))
        yield self._attention("w_kc", (heads, nope, latent), is_derived=True)
        yield self._attention("w_vc", (heads, latent, value), is_derived=True)
        yield self._attention("o_proj", (hidden, heads * value))
        index = self.spec.sparse_index
        if index is not None:
            width = mla.q_lora_rank or hidden
            yield self._weight("index_q_proj", Component.INDEX, (index.num_heads * index.head_dim, width), self._every)
            yield self._weight("index_k_proj", Component.INDEX, (index.head_dim, hidden), self._every)
            yield self._weight("index_weights_proj", Component.INDEX, (index.num_heads, hidden), self._every)
            yield self._weight("index_k_norm", Component.NORM, (2, index.head_dim), self._every)

    def _gqa(self, gqa: Gqa) -> Iterator[Weight]:
        hidden, heads = self.spec.hidden_size, self._heads()
        keys = max(gqa.num_key_value_heads // self.parallel.attention_tp, 1)
        yield self._attention("qkv_proj", ((heads + 2 * keys) * gqa.head_dim, hidden))
        yield self._attention("o_proj", (hidden, heads * gqa.head_dim))

    def _experts(self, experts: Experts) -> Iterator[Weight]:
        layers, hidden = self.spec.expert_layers, self.spec.hidden_size
        routed = self._share("routed experts", experts.routed, self.parallel.ep)
        inner = self._share("moe_intermediate_size", experts.intermediate_size, self.parallel.expert_tp)
        yield self._weight("w13", Component.EXPERTS, (routed, 2 * inner, hidden), layers)
        yield self._weight("w2", Component.EXPERTS, (routed, hidden, inner), layers)
        yield self._weight("router", Component.ROUTER, (experts.routed, hidden), layers)
        if experts.shared:
            yield from self._mlp(Component.SHARED_EXPERT, "shared_", experts.shared_intermediate_size, layers)

    def _mlp(self, component: Component, prefix: str, width: int, layers: tuple[int, ...]) -> Iterator[Weight]:
        ranks = self.parallel.dense_tp if component is Component.DENSE_MLP else self.parallel.shared_tp
        inner, hidden = self._share("intermediate_size", width, ranks), self.spec.hidden_size
        yield self._weight(f"{prefix}w13", component, (2 * inner, hidden), layers)
        yield self._weight(f"{prefix}w2", component, (hidden, inner), layers)

    @property
    def _every(self) -> tuple[int, ...]:
        return tuple(range(len(self.spec.layers)))

    def _heads(self) -> int:
        return self._share("num_attention_heads", self.spec.num_attention_heads, self.parallel.attention_tp)

    def _attention(self, name: str, shape: tuple[int, ...], *, is_derived: bool = False) -> Weight:
        return self._weight(name, Component.ATTENTION, shape, self._every, is_derived=is_derived)

    def _weight(
        self,
        name: str,
        component: Component,
        shape: tuple[int, ...],
        layers: tuple[int, ...],
        *,
        is_derived: bool = False,
    ) -> Weight:
        return Weight(name, component, shape, layers, self.formats.get(component, BF16), is_derived)

    def _share(self, field: str, size: int, ranks: int) -> int:
        if size % ranks:
            raise UsageError(f"--tp {self.parallel.tp}: the model's {field}, {size}, does not divide by {ranks} ranks")
        return size // ranks
