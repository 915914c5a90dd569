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
    bias: bool = False
    """Whether the projections from and to the hidden state (`q_a`, `kv_a`, `o`) add a bias."""


class Gqa(msgspec.Struct, frozen=True, kw_only=True):
    """Attention with keys and values kept by head: multi-head, grouped-query or multi-query."""

    num_key_value_heads: int
    head_dim: int
    bias: bool = False
    """Whether the projections of queries, keys and values add a bias."""
    output_bias: bool = False
    """Whether the projection of the output adds one."""
    qk_norm: bool = False
    """Whether queries and keys are normalised by head."""
    sinks: bool = False
    """Whether each head has a learnt logit that takes part in the softmax but has no value (gpt-oss)."""


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
    shared_gate: bool = False
    """Whether a gate weighs the shared expert's output (Qwen2-MoE)."""
    bias: bool = False
    """Whether the projections of the routed experts add a bias."""
    router_bias: bool = False
    """Whether the router adds a bias by expert: to its logits (gpt-oss), or only to choose (DeepSeek-V3's
    `e_score_correction_bias`)."""
    groups: int = 1
    """Groups of experts, of which only `groups_kept` are chosen from for a token."""
    groups_kept: int = 1


class Layer(msgspec.Struct, frozen=True):
    """One decoder layer."""

    has_experts: bool
    window: int | None = None
    """Tokens that its attention sees at most, its own included; None: all of the context."""
    has_index: bool = False
    """Whether it has a sparse index of its own; without one, it reads the tokens that an earlier layer's chose."""


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
    gated_mlp: bool = True
    """Whether the dense MLPs have two projections up, one of which gates the other."""
    mlp_bias: bool = False
    """Whether the dense MLPs' projections add a bias."""
    layer_norms: tuple[str, ...] = ("input_norm", "post_attention_norm")
    """The norms over the hidden state in each layer."""
    norm_bias: bool = False
    """Whether norms have a bias beside their weight (LayerNorm, not RMSNorm)."""
    lm_head_bias: bool = False
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

    @property
    def indexed_layers(self) -> tuple[int, ...]:
        """Indices of the layers with a sparse index of their own."""
        return tuple(index for index, layer in enumerate(self.layers) if layer.has_index)
