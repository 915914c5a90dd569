"""The small operations of a layer in plain torch: what a CPU runs, and what `fused` is checked against."""

from __future__ import annotations

import torch
from torch.nn import functional

EPSILON = 1e-5


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return x by its root mean square, times the weight: [rows, width]."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)
    return (wide * scale).to(x.dtype) * weight


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Add x to the residual, in place, and return the sum normalised: [rows, width]."""
    residual.add_(x)
    return rms_norm(residual, weight)


def rotate_and_append(  # noqa: PLR0913, PLR0917 -- what one fused kernel reads and writes
    q_rope: torch.Tensor,
    latent: torch.Tensor,
    k_rope: torch.Tensor,
    angles: torch.Tensor,
    q: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Rotate the rotary parts by their positions, put the queries' into `q`, and the new row into the pool.

    Args:
        q_rope: [rows, heads, rope].
        latent: normalised, [rows, latent].
        k_rope: [rows, rope].
        angles: cosine and sine of each pair, float32, [rows, 2, rope / 2].
        q: the absorbed queries, [rows, heads, latent + rope]; the last part is written.
        pool: [slots, 1, latent + rope].
        slots: where each row goes, [rows].
    """
    width = latent.shape[-1]
    q[..., width:] = _rotated(q_rope, angles[:, None])
    pool[slots, 0] = torch.cat((latent, _rotated(k_rope, angles)), -1).to(pool.dtype)


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """Return silu of the first half times the second: [rows, 2 × width] → [rows, width]."""
    gate, up = x.chunk(2, -1)
    return functional.silu(gate) * up


def route(scores: torch.Tensor, per_token: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each token's experts and their weights, which add up to 1: [rows, experts] → 2 × [rows, per_token]."""
    weights, experts = scores.float().sigmoid().topk(per_token, -1)
    return (weights / weights.sum(-1, keepdim=True)).to(scores.dtype), experts


def _rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Turn neighbouring values as pairs."""
    even, odd = x[..., ::2].float(), x[..., 1::2].float()
    cosine, sine = angles[..., 0, :], angles[..., 1, :]
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1).flatten(-2).to(x.dtype)
