"""Absorbed multi-head latent attention over the paged pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.lab.parts import Parts
    from stepscope.lab.pool import View
    from stepscope.lab.weights import Tensors
    from stepscope.model import Mla


def gather_cast(pool: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Read the live rows, then convert them."""
    return pool[slots].to(dtype).squeeze(-2)


def full_pool_cast(pool: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert the whole pool, then read the live rows: the bug."""
    return pool.to(dtype)[slots].squeeze(-2)


READERS: Mapping[str, Callable[[torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor]] = {
    "gather-cast": gather_cast,
    "full-pool-cast": full_pool_cast,
}


def reader(name: str) -> Callable[[torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor]:
    """Return a way to read the pool.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in READERS:
        raise UsageError(f"--attention {name}: known are {', '.join(READERS)}")
    return READERS[name]


class Step(NamedTuple):
    """What a step is the same for in all layers."""

    view: View
    angles: torch.Tensor
    """Cosine and sine by row: [rows, 2, rope / 2], float32."""


class MLAAttention(torch.nn.Module):
    """One layer's attention; its pool is written and read here."""

    def __init__(self, mla: Mla, weights: Tensors, pool: torch.Tensor, parts: Parts) -> None:
        super().__init__()
        self.mla, self.pool, self.parts = mla, pool, parts
        self.fused_qkv_a_proj = parts.linear(weights["fused_qkv_a_proj"])
        self.q_b_proj = parts.linear(weights["q_b_proj"])
        self.o_proj = parts.linear(weights["o_proj"])
        self.q_a_norm, self.kv_a_norm = weights["q_a_norm"], weights["kv_a_norm"]
        self.w_kc, self.w_vc = weights["w_kc"], weights["w_vc"]
        self.heads = weights["w_kc"].shape[0]
        self.scale = (mla.qk_nope_head_dim + mla.qk_rope_head_dim) ** -0.5

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Attend from the new tokens, [rows, hidden], to all of their requests; rows are requests × new tokens."""
        mla, parts = self.mla, self.parts
        q_a, latent, k_rope = torch.split(
            self.fused_qkv_a_proj(x), [self.q_a_norm.numel(), mla.kv_lora_rank, mla.qk_rope_head_dim], -1
        )
        queries = self.q_b_proj(parts.rms_norm(q_a, self.q_a_norm)).view(len(x), self.heads, -1)
        q_nope, q_rope = torch.split(queries, [mla.qk_nope_head_dim, mla.qk_rope_head_dim], -1)
        q = parts.new((len(x), self.heads, mla.kv_lora_rank + mla.qk_rope_head_dim), device=x.device, dtype=x.dtype)
        parts.per_head(q_nope, self.w_kc, q[..., : mla.kv_lora_rank])
        latent = parts.rms_norm(latent, self.kv_a_norm)
        parts.rotate_and_append(q_rope, latent, k_rope, step.angles, q, self.pool, step.view.written)
        values = parts.new((len(x), self.heads, mla.v_head_dim), device=x.device, dtype=x.dtype)
        parts.per_head(self.forward_decode(q, step.view), self.w_vc, values)
        return self.o_proj(values.flatten(1))

    def forward_decode(self, q: torch.Tensor, view: View) -> torch.Tensor:
        """Return the weighted latents: [rows, heads, latent]."""
        rows, heads, width = q.shape
        requests = view.slots.shape[0]
        k = self.parts.read_pool(self.pool, view.slots, q.dtype)
        scores = q.view(requests, -1, width) @ k.transpose(1, 2)
        scores = torch.add(view.hidden, scores.view(requests, -1, heads, k.shape[1]), alpha=self.scale)
        shares = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
        latents = shares.view(requests, -1, k.shape[1]) @ k[..., : self.mla.kv_lora_rank]
        return latents.view(rows, heads, -1)
