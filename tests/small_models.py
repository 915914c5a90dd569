"""Two models small enough to count by hand."""

from __future__ import annotations

from stepscope.model import Experts, Gqa, Layer, Mla, ModelSpec, SparseIndex

GROUPED = ModelSpec(
    architecture="SmallGrouped",
    hidden_size=8,
    vocab_size=32,
    num_attention_heads=4,
    attention=Gqa(num_key_value_heads=2, head_dim=2),
    layers=(Layer(has_experts=False), Layer(has_experts=False, window=5)),
    intermediate_size=16,
)
"""Dense, grouped queries; the second of two layers sees 5 tokens."""

LATENT = ModelSpec(
    architecture="SmallLatent",
    hidden_size=8,
    vocab_size=16,
    num_attention_heads=2,
    attention=Mla(q_lora_rank=4, kv_lora_rank=6, qk_nope_head_dim=3, qk_rope_head_dim=2, v_head_dim=4),
    layers=(
        Layer(has_experts=False, has_index=True),
        Layer(has_experts=True, has_index=True),
        Layer(has_experts=True, has_index=True),
    ),
    intermediate_size=12,
    experts=Experts(routed=8, per_token=2, intermediate_size=4, shared=1, shared_intermediate_size=4),
    sparse_index=SparseIndex(num_heads=2, head_dim=4, topk=8),
)
"""Latent attention of 8 tokens that an index selects; a dense layer, then two of 8 experts, 2 a token, 1 shared."""
