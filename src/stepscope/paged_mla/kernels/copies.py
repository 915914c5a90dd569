"""Widening casts, whole and gathered, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from stepscope.paged_mla.kernels.widen import widen


@triton.jit
def cast_kernel(source, to, size, FORM: tl.constexpr, BLOCK: tl.constexpr):
    """Widen ``BLOCK`` consecutive elements a program."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + at, mask=at < size, other=0.0)
    tl.store(to + at, widen(values, FORM).to(to.dtype.element_ty), mask=at < size)


@triton.jit
def gather_cast_kernel(
    source,
    indices,
    to,
    count,
    slots,
    stride,
    scale,
    FORM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Widen ``ROWS`` indexed rows a program, ``COLUMNS`` at a time; rows outside the pool become zeros."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(indices + row, mask=row < count, other=-1).to(tl.int64)
    live = (slot >= 0) & (slot < slots)
    slot = tl.where(live, slot, 0)
    for c0 in tl.static_range(0, WIDTH, COLUMNS):
        c = c0 + tl.arange(0, COLUMNS)
        values = tl.load(source + slot[:, None] * stride + c[None, :], mask=live[:, None] & (c < WIDTH), other=0.0)
        wide = widen(values, FORM).to(tl.float32) * scale
        inside = (row < count)[:, None] & (c < WIDTH)
        tl.store(to + row[:, None] * WIDTH + c[None, :], wide.to(to.dtype.element_ty), mask=inside)
