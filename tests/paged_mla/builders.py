"""Small decode problems with everything that a real pool has: shuffled pages, NaN in every slot not referenced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from stepscope.paged_mla import mla_decode
from stepscope.paged_mla.reference import mla_decode_reference

SM_SCALE = 192**-0.5


@dataclass(frozen=True)
class Problem:
    q_nope: torch.Tensor
    q_pe: torch.Tensor
    pool: torch.Tensor
    table: torch.Tensor
    indptr: torch.Tensor
    indices: torch.Tensor
    seq_lens: torch.Tensor
    lengths: list[int]
    page_size: int
    kv_scale: float

    def pages(self, form: str) -> dict[str, torch.Tensor]:
        if form == "table":
            return {"block_table": self.table}
        return {"kv_indptr": self.indptr, "kv_indices": self.indices}

    def caches(self, form: str) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if form == "slots":
            return self.pool.view(-1, 1, 576)
        paged = self.pool.view(-1, self.page_size, 576)
        return paged if form == "pages" else (paged[..., :512], paged[..., 512:])

    def run(self, pages: str = "table", cache: str = "slots", **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.full(self.q_nope.shape, float("nan"), dtype=torch.float32, device=self.pool.device)
        lse = torch.full(self.q_nope.shape[:2], float("nan"), dtype=torch.float32, device=self.pool.device)
        arguments = {
            "seq_lens": self.seq_lens,
            "page_size": self.page_size,
            "sm_scale": SM_SCALE,
            "kv_scale": self.kv_scale,
            "out": out,
            "lse": lse,
            "return_lse": True,
            **self.pages(pages),
            **more,
        }
        result = mla_decode(self.q_nope, self.q_pe, self.caches(cache), **arguments)
        assert isinstance(result, tuple)
        return result

    def reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        return mla_decode_reference(
            self.q_nope,
            self.q_pe,
            self.pool[:, :512],
            self.pool[:, 512:],
            list(self.table),
            self.lengths,
            page_size=self.page_size,
            sm_scale=SM_SCALE,
            kv_scale=self.kv_scale,
        )

    def check(self, out: torch.Tensor, lse: torch.Tensor, *, tolerance: float = 5e-4) -> None:
        expected, expected_lse = self.reference()
        assert torch.isfinite(out).all()
        error = (out.double() - expected).norm() / expected.norm().clamp_min(1e-30)
        assert error <= tolerance, f"relative error {error:.2e}"
        empty = torch.isinf(expected_lse)
        assert torch.equal(torch.isneginf(lse), empty)
        assert (lse.double() - expected_lse)[~empty].abs().amax() <= 1e-3 if (~empty).any() else True


def build_problem(
    *,
    heads: int,
    lengths: list[int],
    page_size: int,
    device: torch.device,
    dtype: torch.dtype = torch.float8_e4m3fn,
    index_dtype: torch.dtype = torch.int32,
    length_dtype: torch.dtype = torch.int32,
    kv_scale: float = 0.5,
    shared_pages: bool = False,
    seed: int = 0,
) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    batch = len(lengths)
    per_request = max(1, *(-(-length // page_size) for length in lengths)) if lengths else 1
    pages = 3 + (per_request if shared_pages else batch * per_request)
    order = torch.randperm(pages, generator=generator)
    table = torch.stack([order[torch.randperm(pages, generator=generator)[:per_request]] for _ in range(batch)])
    if not shared_pages:
        table = order[: batch * per_request].view(batch, per_request)
    pool = torch.randn(pages * page_size, 576, generator=generator).to(dtype)
    used = torch.zeros(pages * page_size, dtype=torch.bool)
    for b, length in enumerate(lengths):
        tokens = torch.arange(length)
        used[table[b, tokens // page_size] * page_size + tokens % page_size] = True
    poisoned = pool.float()
    poisoned[~used] = float("nan")
    query = torch.randn(batch, heads, 576, generator=generator).bfloat16()
    counts = [-(-length // page_size) for length in lengths]
    indptr = torch.tensor([0, *counts]).cumsum(0)
    indices = torch.cat([table[b, :count] for b, count in enumerate(counts)])
    return Problem(
        q_nope=query[..., :512].to(device),
        q_pe=query[..., 512:].to(device),
        pool=poisoned.to(dtype).to(device),
        table=table.to(index_dtype).to(device),
        indptr=indptr.to(index_dtype).to(device),
        indices=indices.to(index_dtype).to(device),
        seq_lens=torch.tensor(lengths, dtype=length_dtype, device=device),
        lengths=lengths,
        page_size=page_size,
        kv_scale=kv_scale,
    )
