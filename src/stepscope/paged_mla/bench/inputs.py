"""Inputs of one case: the same numbers for every contender, in as many pools as keep the L2 cold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from stepscope.paged_mla.reference import mla_decode_reference

if TYPE_CHECKING:
    from stepscope.paged_mla.bench.cases import Case

COLD_BYTES = 256e6  # read between two uses of one pool; the L2 of an H200 holds 60e6
SM_SCALE = 192**-0.5


@dataclass(frozen=True)
class Inputs:
    """One case's tensors.

    Attributes:
        q_nope: bf16 ``[B, H, 512]``, a view of ``query``.
        q_pe: bf16 ``[B, H, 64]``, a view of ``query``.
        query: bf16 ``[B, H, 576]``.
        pools: ``[slots, 576]`` each, e4m3 or the same numbers in bf16.
        table: int32 ``[B, pages]``; page numbers, shuffled over the whole pool.
        indptr: int32 ``[B + 1]``.
        indices: int32 ``[B * pages]``, the table's entries in order.
        seq_lens: int32 ``[B]``.
        page_size: tokens a page.
    """

    case: Case
    query: torch.Tensor
    pools: list[torch.Tensor]
    table: torch.Tensor
    indptr: torch.Tensor
    indices: torch.Tensor
    seq_lens: torch.Tensor
    page_size: int

    @property
    def q_nope(self) -> torch.Tensor:
        """The queries' latent part."""
        return self.query[..., :512]

    @property
    def q_pe(self) -> torch.Tensor:
        """The queries' rotary part."""
        return self.query[..., 512:]


def make_inputs(case: Case, page_size: int, dtype: torch.dtype, device: torch.device) -> Inputs:
    """Draw a case's inputs from a fixed seed.

    Args:
        case: shapes.
        page_size: tokens a page.
        dtype: of the pools: float8_e4m3fn or bfloat16 (the e4m3 numbers, widened).
        device: a CUDA device.
    """
    generator = torch.Generator(device=device).manual_seed(7 * case.heads + 11 * case.batch + case.tokens + page_size)
    pages = -(-case.tokens // page_size)
    slots = case.batch * pages * page_size
    width = 2 if dtype == torch.bfloat16 else 1
    count = 1 + math.ceil(COLD_BYTES / (case.all_tokens * 576 * width))
    query = torch.randn(case.batch, case.heads, 576, device=device, generator=generator).bfloat16()
    table = torch.randperm(case.batch * pages, device=device, generator=generator).int().view(case.batch, pages)
    first = torch.randn(slots, 576, device=device, generator=generator).to(torch.float8_e4m3fn)
    pools = [first.to(dtype)] + [
        torch.randn(slots, 576, device=device, generator=generator).to(torch.float8_e4m3fn).to(dtype)
        for _ in range(count - 1)
    ]
    return Inputs(
        case=case,
        query=query,
        pools=pools,
        table=table,
        indptr=torch.arange(0, case.batch * pages + 1, pages, dtype=torch.int32, device=device),
        indices=table.reshape(-1).contiguous(),
        seq_lens=torch.full((case.batch,), case.tokens, dtype=torch.int32, device=device),
        page_size=page_size,
    )


def reference_of(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Float64 ``out`` and natural-log ``lse`` on the first pool."""
    pool = inputs.pools[0]
    return mla_decode_reference(
        inputs.q_nope,
        inputs.q_pe,
        pool[:, :512],
        pool[:, 512:],
        list(inputs.table),
        inputs.seq_lens.tolist(),
        page_size=inputs.page_size,
        sm_scale=SM_SCALE,
    )


def probabilities_in_e4m3(inputs: Inputs) -> torch.Tensor:
    """What casting both q and p to e4m3 unscaled gives: ``out`` in float32, all else exact."""
    pool = inputs.pools[0].float()
    slots = inputs.table.long() * inputs.page_size
    out = torch.empty(inputs.q_nope.shape, dtype=torch.float32, device=pool.device)
    query = inputs.query.to(torch.float8_e4m3fn).double()
    for b in range(inputs.case.batch):
        rows = (slots[b, :, None] + torch.arange(inputs.page_size, device=pool.device)).reshape(-1)
        keys = pool[rows[: inputs.case.tokens]].double()
        logits = SM_SCALE * query[b] @ keys.T
        chance = torch.exp(logits - logits.amax(-1, keepdim=True))
        rounded = chance.float().to(torch.float8_e4m3fn).double()
        out[b] = ((rounded @ keys[:, :512]) / chance.sum(-1, keepdim=True)).float()
    return out
