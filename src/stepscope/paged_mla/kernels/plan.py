"""Deals out tiles to workers, in Triton: see :mod:`stepscope.paged_mla.plan`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _length(seq_lens, indptr, b, batch, capacity, HAS_INDPTR: tl.constexpr, PAGE_SIZE: tl.constexpr):
    # Tokens of request b that have a page entry; entries outside kv_indices are not counted.
    length = tl.load(seq_lens + b, mask=b < batch, other=0).to(tl.int64)
    if HAS_INDPTR:
        first = tl.load(indptr + b, mask=b < batch, other=0).to(tl.int64)
        last = tl.minimum(tl.load(indptr + b + 1, mask=b < batch, other=0).to(tl.int64), capacity)
        pages = tl.where(first >= 0, tl.maximum(last - first, 0), 0)
    else:
        pages = capacity
    return tl.minimum(tl.maximum(length, 0), pages * PAGE_SIZE)


@triton.jit
def plan_kernel(
    seq_lens,
    indptr,
    lengths,
    spans,
    starts,
    batch,
    capacity,
    workers,
    HAS_INDPTR: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    REQUESTS: tl.constexpr,
    WORKERS: tl.constexpr,
):
    """Write ``lengths [B]``, ``spans [B, 2]`` and ``starts [workers + 1, 4]``; one program."""
    total = tl.zeros([], tl.int64)
    for b0 in range(0, batch, REQUESTS):
        b = b0 + tl.arange(0, REQUESTS)
        length = _length(seq_lens, indptr, b, batch, capacity, HAS_INDPTR, PAGE_SIZE)
        tl.store(lengths + b, length.to(tl.int32), mask=b < batch)
        total += tl.sum((length + TILE - 1) // TILE)
    share = tl.maximum((total + workers - 1) // workers, 1)

    before = tl.zeros([], tl.int64)
    for b0 in range(0, batch, REQUESTS):
        b = b0 + tl.arange(0, REQUESTS)
        tiles = (_length(seq_lens, indptr, b, batch, capacity, HAS_INDPTR, PAGE_SIZE) + TILE - 1) // TILE
        first = before + tl.cumsum(tiles, 0) - tiles
        some = tiles > 0
        tl.store(spans + 2 * b, tl.where(some, first // share, 0).to(tl.int32), mask=b < batch)
        last = tl.where(some, (first + tl.maximum(tiles, 1) - 1) // share, -1)
        tl.store(spans + 2 * b + 1, last.to(tl.int32), mask=b < batch)
        before += tl.sum(tiles)

    for w0 in range(0, workers + 1, WORKERS):
        w = w0 + tl.arange(0, WORKERS)
        at = tl.minimum(w.to(tl.int64) * share, total)
        request = tl.zeros([WORKERS], tl.int32)
        base = tl.zeros([WORKERS], tl.int64)
        before = tl.zeros([], tl.int64)
        for b0 in range(0, batch, REQUESTS):
            b = b0 + tl.arange(0, REQUESTS)
            tiles = (_length(seq_lens, indptr, b, batch, capacity, HAS_INDPTR, PAGE_SIZE) + TILE - 1) // TILE
            end = before + tl.cumsum(tiles, 0)
            passed = (end[None, :] <= at[:, None]) & (b < batch)[None, :]
            request += tl.sum(passed.to(tl.int32), 1)
            base += tl.sum(tl.where(passed, tiles[None, :], 0), 1)
            before += tl.sum(tiles)
        length = _length(seq_lens, indptr, request, batch, capacity, HAS_INDPTR, PAGE_SIZE)
        tl.store(starts + 4 * w, request, mask=w <= workers)
        tl.store(starts + 4 * w + 1, (at - base).to(tl.int32), mask=w <= workers)
        tl.store(starts + 4 * w + 2, length.to(tl.int32), mask=w <= workers)
        tl.store(starts + 4 * w + 3, 0, mask=w <= workers)
