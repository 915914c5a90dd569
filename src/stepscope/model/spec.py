"""What a model is made of: its layers, widths, heads and experts, whatever its `config.json` calls them."""

from __future__ import annotations

import msgspec


class Mla(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention: keys and values of all heads are kept as one latent and one rotary key."""

    q_lora_rank: int | None
    """Width of the query's low rank; None: queries are projected from the hidden state directly."""
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


class Gqa(msgspec.Struct, frozen=True, kw_only=True):
    """Attention with keys and values kept by head: multi-head, grouped-query or multi-query."""

    num_key_value_heads: int
    head_dim: int
    bias: bool = False
    """Whether the projections of queries, keys and values add a bias."""
    qk_norm: bool = False
    """Whether queries and keys are normalised by head."""


class SparseIndex(msgspec.Struct, frozen=True, kw_only=True):
    """A small attention that chooses which tokens the main one reads (DeepSeek sparse attention)."""

    num_heads: int
    head_dim: int
    topk: int
    """Tokens that the main attention reads at most."""


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """A layer's routed experts, and those that every token goes through."""

    routed: int
    per_token: int
    intermediate_size: int
    shared: int = 0
    shared_intermediate_size: int = 0
    """Inner width of the shared experts together."""


class Layer(msgspec.Struct, frozen=True):
    """One decoder layer."""

    has_experts: bool
    window: int | None = None
    """Tokens that its attention sees at most; None: all of the context."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only transformer. Widths are numbers of elements of the whole model, not of a rank."""

    architecture: str
    """The class that the config names, such as `DeepseekV3ForCausalLM`."""
    hidden_size: int
    vocab_size: int
    num_attention_heads: int
    attention: Mla | Gqa
    layers: tuple[Layer, ...]
    """Without multi-token-prediction layers."""
    intermediate_size: int
    """Inner width of the dense MLPs."""
    experts: Experts | None = None
    sparse_index: SparseIndex | None = None
    tie_word_embeddings: bool = False
    mtp_layers: int = 0
    """Multi-token-prediction layers, which only speculative decoding runs."""
    notes: tuple[str, ...] = ()
    """What was assumed where the config does not tell, a sentence each."""

    @property
    def dense_layers(self) -> tuple[int, ...]:
        """Indices of the layers with a dense MLP."""
        return tuple(index for index, layer in enumerate(self.layers) if not layer.has_experts)

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """Indices of the layers with experts."""
        return tuple(index for index, layer in enumerate(self.layers) if layer.has_experts)
