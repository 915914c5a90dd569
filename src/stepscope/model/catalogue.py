"""The weights of a model as one rank holds them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, prod
from typing import TYPE_CHECKING

import msgspec

from stepscope.errors import UsageError
from stepscope.model.caches import kv_heads
from stepscope.model.formats import BF16, Stored, WeightFormat
from stepscope.model.spec import Gqa, Layer, Mla

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    MTP = "multi-token prediction"


LINEAR = (Component.ATTENTION, Component.INDEX, Component.DENSE_MLP, Component.EXPERTS, Component.SHARED_EXPERT)
"""Components whose weights are multiplied by in linear layers that checkpoints quantise."""


_VOCABULARY_MULTIPLE = 64  # SGLang's and vLLM's DEFAULT_VOCAB_PADDING_SIZE


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
    is_matrix: bool = True
    """Whether rows of it are multiplied by or looked up; not so biases, norms and gates, which no format converts."""

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
    spec: ModelSpec,
    parallel: Parallel,
    formats: Mapping[Component, WeightFormat] | None = None,
    stage: range | None = None,
) -> tuple[Weight, ...]:
    """Return the weights on one rank, without those of multi-token prediction.

    Heads, inner widths and the vocabulary are split; the low-rank down-projections, the norms and the router are on
    every rank, and so are heads of keys and values where there are fewer than ranks. `w_kc` and `w_vc` are the halves
    of `kv_b_proj` that absorbed MLA multiplies by.

    Args:
        spec: the model.
        parallel: its ranks.
        formats: how the linear layers of a component are stored; what is not named, and every vector, is BF16.
        stage: indices of the layers on the rank's pipeline stage, as the engine shares them out; None: all. The first
            stage has the embedding, the last one the final norm and the LM head.

    Raises:
        UsageError: the model's heads, widths or experts do not divide by the ranks.
    """
    catalogue = _Catalogue(spec, parallel, formats or {}, stage if stage is not None else range(len(spec.layers)))
    return tuple(catalogue.weights())


def mtp_weights(
    spec: ModelSpec, parallel: Parallel, formats: Mapping[Component, WeightFormat] | None = None
) -> tuple[Weight, ...]:
    """Return the weights that only multi-token prediction needs, on one rank; their layers follow the model's.

    Each such layer joins the hidden state with the next token's embedding (`eh_proj`) and is otherwise built as the
    model's last layers are; the embedding and the LM head are the model's own (DeepSeek-V3, README_WEIGHTS).
    """
    if not spec.mtp_layers:
        return ()
    layer = Layer(has_experts=spec.experts is not None, has_index=spec.sparse_index is not None)
    alone = msgspec.structs.replace(spec, layers=(layer,) * spec.mtp_layers)
    catalogue = _Catalogue(alone, parallel, formats or {}, range(spec.mtp_layers))
    hidden, every = spec.hidden_size, catalogue.every
    parts = [
        *catalogue.layer_weights(),
        Weight("eh_proj", Component.MTP, (hidden, 2 * hidden), every),
        *(
            Weight(name, Component.MTP, (hidden,), every, is_matrix=False)
            for name in ("embedding_norm", "hidden_norm", "head_norm")
        ),
    ]
    first = len(spec.layers)
    return tuple(
        replace(part, name=f"mtp_{part.name}", component=Component.MTP, layers=tuple(first + i for i in part.layers))
        for part in parts
    )


@dataclass(frozen=True, slots=True)
class _Catalogue:
    spec: ModelSpec
    parallel: Parallel
    formats: Mapping[Component, WeightFormat]
    stage: range

    def weights(self) -> Iterator[Weight]:
        yield from self.layer_weights()
        spec, hidden = self.spec, self.spec.hidden_size
        if self.stage.start == 0:
            rows = self._vocabulary(self.parallel.attention_tp)
            yield self._matrix("embedding", Component.EMBEDDING, (rows, hidden), ())
        if self.stage.stop == len(spec.layers):
            yield from self._norm("final_norm", hidden, ())
            tied, rows = spec.tie_word_embeddings and self.stage.start == 0, self._vocabulary(self.parallel.lm_head_tp)
            yield self._matrix("lm_head", Component.LM_HEAD, (rows, hidden), (), is_derived=tied)
            if spec.lm_head_bias:
                yield self._vector("lm_head_bias", Component.LM_HEAD, (rows,), ())

    def layer_weights(self) -> Iterator[Weight]:
        attention = self.spec.attention
        yield from self._mla(attention) if isinstance(attention, Mla) else self._gqa(attention)
        yield from self._index()
        dense = self._on_stage(self.spec.dense_layers)
        if dense:
            yield from self._mlp(Component.DENSE_MLP, "dense_", self.spec.intermediate_size, dense)
        if self.spec.experts is not None:
            yield from self._experts(self.spec.experts)
        for name in self.spec.layer_norms:
            yield from self._norm(name, self.spec.hidden_size, self.every)

    def _mla(self, mla: Mla) -> Iterator[Weight]:
        hidden, heads = self.spec.hidden_size, self._heads()
        latent, nope, rope, value = mla.kv_lora_rank, mla.qk_nope_head_dim, mla.qk_rope_head_dim, mla.v_head_dim
        if mla.q_lora_rank is None:
            yield self._attention("q_proj", (heads * (nope + rope), hidden))
        else:
            yield self._attention("q_a_proj", (mla.q_lora_rank, hidden))
            yield self._attention("q_b_proj", (heads * (nope + rope), mla.q_lora_rank))
            yield self._attention("fused_qkv_a_proj", (mla.q_lora_rank + latent + rope, hidden), is_derived=True)
            yield self._vector("q_a_norm", Component.NORM, (mla.q_lora_rank,), self.every)
        yield self._attention("kv_a_proj", (latent + rope, hidden))
        yield self._vector("kv_a_norm", Component.NORM, (latent,), self.every)
        yield self._attention("kv_b_proj", (heads * (nope + value), latent))
        yield self._attention("w_kc", (heads, nope, latent), is_derived=True)
        yield self._attention("w_vc", (heads, latent, value), is_derived=True)
        yield self._attention("o_proj", (hidden, heads * value))
        if mla.bias:
            if mla.q_lora_rank is not None:
                yield self._attention_vector("q_a_bias", mla.q_lora_rank)
            yield self._attention_vector("kv_a_bias", latent + rope)
            yield self._attention_vector("o_bias", hidden)

    def _index(self) -> Iterator[Weight]:
        index, layers = self.spec.sparse_index, self._on_stage(self.spec.indexed_layers)
        if index is None or not layers:
            return
        hidden, attention = self.spec.hidden_size, self.spec.attention
        low_rank = attention.q_lora_rank if isinstance(attention, Mla) else None
        width = low_rank or hidden
        yield self._matrix("index_q_proj", Component.INDEX, (index.num_heads * index.head_dim, width), layers)
        yield self._matrix("index_k_proj", Component.INDEX, (index.head_dim, hidden), layers)
        yield self._matrix("index_weights_proj", Component.INDEX, (index.num_heads, hidden), layers)
        yield self._vector("index_k_norm", Component.NORM, (2, index.head_dim), layers)  # LayerNorm: weight and bias

    def _gqa(self, gqa: Gqa) -> Iterator[Weight]:
        hidden, heads, keys = self.spec.hidden_size, self._heads(), kv_heads(gqa, self.parallel)
        rows = (heads + 2 * keys) * gqa.head_dim
        yield self._attention("qkv_proj", (rows, hidden))
        yield self._attention("q_proj", (heads * gqa.head_dim, hidden), is_derived=True)
        yield self._attention("k_proj", (keys * gqa.head_dim, hidden), is_derived=True)
        yield self._attention("v_proj", (keys * gqa.head_dim, hidden), is_derived=True)
        yield self._attention("o_proj", (hidden, heads * gqa.head_dim))
        if gqa.bias:
            yield self._attention_vector("qkv_bias", rows)
        if gqa.output_bias:
            yield self._attention_vector("o_bias", hidden)
        if gqa.sinks:
            yield self._attention_vector("sinks", heads)
        if gqa.qk_norm:
            yield from self._norm("q_norm", gqa.head_dim, self.every)
            yield from self._norm("k_norm", gqa.head_dim, self.every)

    def _experts(self, experts: Experts) -> Iterator[Weight]:
        layers, hidden = self._on_stage(self.spec.expert_layers), self.spec.hidden_size
        if not layers:
            return
        routed = self._share("routed experts", experts.routed, self.parallel.ep)
        inner = self._share("moe_intermediate_size", experts.intermediate_size, self.parallel.expert_tp)
        yield self._matrix("w13", Component.EXPERTS, (routed, 2 * inner, hidden), layers)
        yield self._matrix("w2", Component.EXPERTS, (routed, hidden, inner), layers)
        if experts.bias:
            yield self._vector("w13_bias", Component.EXPERTS, (routed, 2 * inner), layers)
            yield self._vector("w2_bias", Component.EXPERTS, (routed, hidden), layers)
        yield self._matrix("router", Component.ROUTER, (experts.routed, hidden), layers)
        if experts.router_bias:
            yield self._vector("router_bias", Component.ROUTER, (experts.routed,), layers)
        if experts.shared:
            yield from self._mlp(Component.SHARED_EXPERT, "shared_", experts.shared_intermediate_size, layers)
        if experts.shared_gate:
            yield self._vector("shared_gate", Component.SHARED_EXPERT, (1, hidden), layers)

    def _mlp(self, component: Component, prefix: str, width: int, layers: tuple[int, ...]) -> Iterator[Weight]:
        ranks = self.parallel.dense_tp if component is Component.DENSE_MLP else self.parallel.shared_tp
        inner, hidden = self._share("intermediate_size", width, ranks), self.spec.hidden_size
        gated = self.spec.gated_mlp
        up = f"{prefix}w13" if gated else f"{prefix}w1"
        rows = 2 * inner if gated else inner
        yield self._matrix(up, component, (rows, hidden), layers)
        yield self._matrix(f"{prefix}w2", component, (hidden, inner), layers)
        if gated:
            yield self._matrix(f"{prefix}w1", component, (inner, hidden), layers, is_derived=True)
            yield self._matrix(f"{prefix}w3", component, (inner, hidden), layers, is_derived=True)
        if self.spec.mlp_bias:
            yield self._vector(f"{up}_bias", component, (rows,), layers)
            yield self._vector(f"{prefix}w2_bias", component, (hidden,), layers)

    @property
    def every(self) -> tuple[int, ...]:
        return tuple(self.stage)

    def _on_stage(self, layers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(layer for layer in layers if layer in self.stage)

    def _heads(self) -> int:
        return self._share("num_attention_heads", self.spec.num_attention_heads, self.parallel.attention_tp)

    def _vocabulary(self, ranks: int) -> int:
        """Rows of the vocabulary on one rank; engines fill it up to a multiple of 64 before they split it."""
        size = self.spec.vocab_size
        if ranks > 1:
            size = ceil(size / _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
        return self._share("vocab_size", size, ranks)

    def _attention(self, name: str, shape: tuple[int, ...], *, is_derived: bool = False) -> Weight:
        return self._matrix(name, Component.ATTENTION, shape, self.every, is_derived=is_derived)

    def _attention_vector(self, name: str, size: int) -> Weight:
        return self._vector(name, Component.ATTENTION, (size,), self.every)

    def _norm(self, name: str, size: int, layers: tuple[int, ...]) -> Iterator[Weight]:
        yield self._vector(name, Component.NORM, (size,), layers)
        if self.spec.norm_bias:
            yield self._vector(f"{name}_bias", Component.NORM, (size,), layers)

    def _vector(self, name: str, component: Component, shape: tuple[int, ...], layers: tuple[int, ...]) -> Weight:
        """Return a weight that no format converts: a bias, a norm, a gate."""
        return Weight(name, component, shape, layers, is_matrix=False)

    def _matrix(
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
