"""Paged MLA decode in plain PyTorch: slow, readable, and what every kernel is compared with."""

from __future__ import annotations

import torch

LATENT = 512
ROPE = 64


def gather_rows(
    latent: torch.Tensor,
    rope: torch.Tensor,
    slots: torch.Tensor,
    *,
    kv_scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys and values of some slots, dequantised.

    Args:
        latent: ``[slots, 512]``, any floating dtype.
        rope: ``[slots, 64]``, the same dtype.
        slots: ``[n]`` integers; a slot outside the pool is left out.
        kv_scale: what one stored unit is worth.
        dtype: of the result.

    Returns:
        Keys ``[m, 576]`` and values ``[m, 512]``, ``m <= n``: the values are the first 512 columns of the keys.
    """
    slots = slots.long()
    slots = slots[(slots >= 0) & (slots < latent.shape[0])]
    keys = torch.cat([latent[slots].to(dtype), rope[slots].to(dtype)], dim=-1) * kv_scale
    return keys, keys[:, :LATENT]


def request_slots(pages: torch.Tensor, length: int, page_size: int) -> torch.Tensor:
    """The slots of one request's tokens, in order.

    Args:
        pages: ``[n]`` page numbers of the request.
        length: tokens of the request; no more than ``n * page_size`` of them have a slot.
        page_size: tokens a page.

    Returns:
        ``[min(length, n * page_size)]`` int64 slots; tokens of a negative page get a negative slot.
    """
    tokens = torch.arange(max(0, min(length, pages.numel() * page_size)), device=pages.device)
    page = pages.long()[tokens // page_size]
    return torch.where(page < 0, -1, page * page_size + tokens % page_size)


def mla_decode_reference(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    latent: torch.Tensor,
    rope: torch.Tensor,
    pages: list[torch.Tensor],
    seq_lens: list[int],
    *,
    page_size: int,
    sm_scale: float,
    kv_scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``softmax(sm_scale * q k^T) v`` over each request's own tokens.

    Args:
        q_nope: absorbed queries ``[B, H, 512]``.
        q_pe: rotary queries ``[B, H, 64]``.
        latent: ``[slots, 512]`` rows of the pool; keys and values.
        rope: ``[slots, 64]`` rows of the pool; keys only.
        pages: one tensor of page numbers a request.
        seq_lens: tokens a request.
        page_size: tokens a page.
        sm_scale: factor of the logits.
        kv_scale: what one stored unit of the pool is worth.
        dtype: float64 or float32; all arithmetic is done in it.

    Returns:
        ``out [B, H, 512]`` and the natural-log ``lse [B, H]`` in ``dtype``; 0 and -inf without tokens.
    """
    query = torch.cat([q_nope, q_pe], dim=-1).to(dtype)
    out = torch.zeros(*q_nope.shape, dtype=dtype, device=q_nope.device)
    lse = torch.full(q_nope.shape[:2], float("-inf"), dtype=dtype, device=q_nope.device)
    for b, (numbers, length) in enumerate(zip(pages, seq_lens, strict=True)):
        slots = request_slots(numbers, length, page_size)
        keys, values = gather_rows(latent, rope, slots, kv_scale=kv_scale, dtype=dtype)
        if keys.shape[0] == 0:
            continue
        logits = sm_scale * query[b] @ keys.T
        lse[b] = torch.logsumexp(logits, dim=-1)
        out[b] = torch.softmax(logits, dim=-1) @ values
    return out, lse
