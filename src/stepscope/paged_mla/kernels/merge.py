"""Combines the parts of split requests, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def merge_kernel(
    part_out,
    part_lse,
    spans,
    out,
    lse,
    out_batch,
    out_head,
    lse_batch,
    heads,
    HAS_LSE: tl.constexpr,
    PARTS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Combine the parts of one request and head; grid ``(B, H, 512 / DIMS)``.

    ``out = sum_i 2^lse_i out_i / sum_i 2^lse_i``; a request in one part was written already, one without is 0, -inf.
    """
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.program_id(2) * DIMS + tl.arange(0, DIMS)
    first = tl.load(spans + 2 * request)
    count = tl.load(spans + 2 * request + 1) - first + 1
    if count != 1:
        top = tl.full([], float("-inf"), tl.float32)
        total = tl.zeros([], tl.float32)
        output = tl.zeros([DIMS], tl.float32)
        for start in range(0, count, PARTS):
            i = start + tl.arange(0, PARTS)
            part = tl.where(i == 0, 2 * first + 1, 2 * (first + i)).to(tl.int64) * heads + head
            each = tl.load(part_lse + part, mask=i < count, other=float("-inf"))
            values = tl.load(part_out + part[:, None] * 512 + d[None, :], mask=(i < count)[:, None], other=0.0)
            new_top = tl.maximum(top, tl.max(each, 0))
            base = tl.where(new_top == float("-inf"), 0.0, new_top)
            alpha = tl.exp2(top - base)
            share = tl.exp2(each - base)
            total = total * alpha + tl.sum(share, 0)
            output = output * alpha + tl.sum(share[:, None] * values, 0)
            top = new_top
        some = (total > 0) | (total != total)
        output = tl.where(some, output / tl.where(some, total, 1.0), 0.0)
        tl.store(out + request * out_batch + head * out_head + d, output.to(out.dtype.element_ty))
        if HAS_LSE:
            natural = (top + tl.log2(tl.where(some, total, 1.0))) * 0.6931471805599453
            tl.store(lse + request * lse_batch + head, tl.where(some, natural, float("-inf")))
