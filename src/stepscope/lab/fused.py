"""The small operations of a layer, one Triton kernel each, as engines have them; `plain` says what they compute."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stepscope.lab.plain import EPSILON


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """See `plain.rms_norm`; rows may lie apart."""
    out = x.new_empty(x.shape)
    block = triton.next_power_of_2(x.shape[1])
    _rms_norm[x.shape[0],](x, x, weight, out, x.stride(0), x.shape[1], EPSILON, ADDS=False, BLOCK=block)
    return out


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """See `plain.add_rms_norm`."""
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    _rms_norm[x.shape[0],](x, residual, weight, out, x.stride(0), x.shape[1], EPSILON, ADDS=True, BLOCK=block)
    return out


def rotate_and_append(
    q_rope: torch.Tensor,
    latent: torch.Tensor,
    k_rope: torch.Tensor,
    angles: torch.Tensor,
    q: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """See `plain.rotate_and_append`."""
    rows, heads, rope = q_rope.shape
    _rotate_and_append[rows, heads + 1](
        q_rope,
        latent,
        k_rope,
        angles,
        q,
        pool,
        slots,
        q_rope.stride(0),
        q_rope.stride(1),
        k_rope.stride(0),
        latent.shape[1],
        HEADS=heads,
        PAIRS=rope // 2,
        LATENT=triton.next_power_of_2(latent.shape[1]),
    )


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """See `plain.silu_mul`."""
    rows, width = x.shape[0], x.shape[1] // 2
    out = x.new_empty(rows, width)
    _silu_mul[rows, triton.cdiv(width, 512)](x, out, width, BLOCK=512)
    return out


def route(scores: torch.Tensor, per_token: int) -> tuple[torch.Tensor, torch.Tensor]:
    """See `plain.route`."""
    rows, experts = scores.shape
    weights = scores.new_empty(rows, per_token)
    chosen = torch.empty(rows, per_token, device=scores.device, dtype=torch.int64)
    block = triton.next_power_of_2(experts)
    _route[rows,](
        scores, weights, chosen, experts, CHOSEN=per_token, BLOCK=block, SLOTS=triton.next_power_of_2(per_token)
    )
    return weights, chosen


@triton.jit
def _rms_norm(x, residual, weight, out, x_stride, width, epsilon, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        value += tl.load(residual + row * width + at, mask=inside, other=0.0).to(tl.float32)
        kept = value.to(residual.dtype.element_ty)
        tl.store(residual + row * width + at, kept, mask=inside)
        value = kept.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + epsilon)
    normed = (value * scale).to(out.dtype.element_ty).to(tl.float32)
    scaled = normed * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rotate_and_append(
    q_rope,
    latent,
    k_rope,
    angles,
    q,
    pool,
    slots,
    q_row_stride,
    q_head_stride,
    k_stride,
    latent_width,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    LATENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    pair = tl.arange(0, PAIRS)
    cosine = tl.load(angles + row * 2 * PAIRS + pair)
    sine = tl.load(angles + row * 2 * PAIRS + PAIRS + pair)
    width = latent_width + 2 * PAIRS
    if head < HEADS:
        source = q_rope + row * q_row_stride + head * q_head_stride
        even = tl.load(source + 2 * pair).to(tl.float32)
        odd = tl.load(source + 2 * pair + 1).to(tl.float32)
        target = q + (row * HEADS + head) * width + latent_width
        tl.store(target + 2 * pair, (even * cosine - odd * sine).to(q.dtype.element_ty))
        tl.store(target + 2 * pair + 1, (even * sine + odd * cosine).to(q.dtype.element_ty))
    else:
        slot = tl.load(slots + row)
        at = tl.arange(0, LATENT)
        inside = at < latent_width
        kept = tl.load(latent + row * latent_width + at, mask=inside, other=0.0)
        tl.store(pool + slot * width + at, kept.to(pool.dtype.element_ty), mask=inside)
        k_even = tl.load(k_rope + row * k_stride + 2 * pair).to(tl.float32)
        k_odd = tl.load(k_rope + row * k_stride + 2 * pair + 1).to(tl.float32)
        stored = pool + slot * width + latent_width
        rounded = (k_even * cosine - k_odd * sine).to(k_rope.dtype.element_ty)
        tl.store(stored + 2 * pair, rounded.to(pool.dtype.element_ty))
        rounded = (k_even * sine + k_odd * cosine).to(k_rope.dtype.element_ty)
        tl.store(stored + 2 * pair + 1, rounded.to(pool.dtype.element_ty))


@triton.jit
def _silu_mul(x, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(x + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    active = (gate * tl.sigmoid(gate)).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * width + at, (active * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _route(scores, weights, chosen, experts, CHOSEN: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    slot = tl.arange(0, SLOTS)
    left = tl.load(scores + row * experts + at, mask=at < experts, other=float("-inf")).to(tl.float32)
    best = tl.zeros((SLOTS,), tl.float32)
    for turn in tl.static_range(0, CHOSEN):
        expert = tl.argmax(left, 0)
        best = tl.where(slot == turn, tl.sigmoid(tl.max(left, 0)), best)
        tl.store(chosen + row * CHOSEN + turn, expert.to(tl.int64))
        left = tl.where(at == expert, float("-inf"), left)
    share = best / tl.sum(best, 0)
    tl.store(weights + row * CHOSEN + slot, share.to(weights.dtype.element_ty), mask=slot < CHOSEN)
