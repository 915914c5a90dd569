"""The portable split-KV kernel, in Triton: every chip from sm_80 on, and the interpreter."""

from __future__ import annotations

import triton
import triton.language as tl

from stepscope.paged_mla.kernels.widen import widen


@triton.jit
def split_kernel(
    q_nope,
    q_pe,
    latent,
    rope,
    pages,
    indptr,
    lengths,
    starts,
    out,
    lse,
    part_out,
    part_lse,
    q_nope_batch,
    q_nope_head,
    q_pe_batch,
    q_pe_head,
    latent_stride,
    rope_stride,
    slots,
    table_stride,
    out_batch,
    out_head,
    lse_batch,
    heads,
    score_scale,
    value_scale,
    PAGE_SIZE: tl.constexpr,
    HAS_INDPTR: tl.constexpr,
    HAS_LSE: tl.constexpr,
    FORM: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    STAGES: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One worker's stretch of tiles for one block of heads; grid ``(workers, head_blocks)``.

    ``score_scale`` turns a dot product of stored numbers into a base-2 logit; ``value_scale`` is the pool's scale.
    ``WIDE`` multiplies bf16 as float32, for the interpreter, which multiplies bf16 bits as integers.
    """
    worker = tl.program_id(0)
    h = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    has_head = h < heads
    d = tl.arange(0, 512)
    r = tl.arange(0, 64)
    first_request = tl.load(starts + 4 * worker)
    first_tile = tl.load(starts + 4 * worker + 1)
    last_request = tl.load(starts + 4 * worker + 4)
    last_tile = tl.load(starts + 4 * worker + 5)
    if last_tile > 0:
        end_request = last_request + 1
    else:
        end_request = last_request
    for i in range(0, end_request - first_request):
        request = first_request + i
        length = tl.load(lengths + request)
        tiles = (length + TOKENS - 1) // TOKENS
        begin = tl.where(request == first_request, first_tile, 0)
        end = tl.where(request == last_request, last_tile, tiles)
        if end > begin:
            nope_at = request.to(tl.int64) * q_nope_batch + h[:, None] * q_nope_head + d[None, :]
            pe_at = request.to(tl.int64) * q_pe_batch + h[:, None] * q_pe_head + r[None, :]
            query = tl.load(q_nope + nope_at, mask=has_head[:, None], other=0.0)
            query_pe = tl.load(q_pe + pe_at, mask=has_head[:, None], other=0.0)
            factor = tl.full([HEADS], score_scale, tl.float32)
            if FORM != "bf16":
                # A power of two takes each head's largest element into [2^14, 2^15): bf16 is then exact in fp16.
                wide, wide_pe = query.to(tl.float32), query_pe.to(tl.float32)
                largest = tl.maximum(tl.max(tl.abs(wide), 1), tl.max(tl.abs(wide_pe), 1))
                exponent = tl.minimum(14 - ((largest.to(tl.int32, bitcast=True) >> 23) - 127), 120)
                up = ((exponent + 127) << 23).to(tl.float32, bitcast=True)
                factor = ((127 - exponent) << 23).to(tl.float32, bitcast=True) * score_scale
                query = (wide * up[:, None]).to(tl.float16)
                query_pe = (wide_pe * up[:, None]).to(tl.float16)
            elif WIDE:
                query, query_pe = query.to(tl.float32), query_pe.to(tl.float32)
            if HAS_INDPTR:
                first_page = tl.load(indptr + request).to(tl.int64)
            else:
                first_page = request.to(tl.int64) * table_stride

            top = tl.full([HEADS], float("-inf"), tl.float32)
            total = tl.zeros([HEADS], tl.float32)
            output = tl.zeros([HEADS, 512], tl.float32)
            for n in tl.range(begin * TOKENS, tl.minimum(end * TOKENS, length), TOKENS, num_stages=STAGES):
                token = n + tl.arange(0, TOKENS)
                number = tl.load(pages + first_page + token // PAGE_SIZE, mask=token < length, other=-1).to(tl.int64)
                slot = number * PAGE_SIZE + token % PAGE_SIZE
                live = (number >= 0) & (slot < slots) & (token < length)
                slot = tl.where(live, slot, 0)
                keys = tl.load(latent + slot[:, None] * latent_stride + d[None, :], mask=live[:, None], other=0.0)
                keys_pe = tl.load(rope + slot[:, None] * rope_stride + r[None, :], mask=live[:, None], other=0.0)
                keys = widen(keys, FORM)
                keys_pe = widen(keys_pe, FORM)
                if WIDE and FORM == "bf16":
                    keys, keys_pe = keys.to(tl.float32), keys_pe.to(tl.float32)
                score = tl.dot(query, tl.trans(keys))
                score = tl.dot(query_pe, tl.trans(keys_pe), score)
                score = tl.where(live[None, :], score * factor[:, None], float("-inf"))
                new_top = tl.maximum(top, tl.max(score, 1))
                base = tl.where(new_top == float("-inf"), 0.0, new_top)
                alpha = tl.exp2(top - base)
                chance = tl.exp2(score - base[:, None])
                top = new_top
                output = output * alpha[:, None]
                if FORM == "bf16":
                    # One bf16 would round p by 2^-9; two carry 16 bits of it.
                    high = chance.to(tl.bfloat16)
                    low = (chance - high.to(tl.float32)).to(tl.bfloat16)
                    total = total * alpha + tl.sum(chance, 1)
                    if WIDE:
                        output = tl.dot(high.to(tl.float32), keys, output)
                        output = tl.dot(low.to(tl.float32), keys, output)
                    else:
                        output = tl.dot(high, keys, output)
                        output = tl.dot(low, keys, output)
                else:
                    # 2^12: fp16 keeps small probabilities normal.
                    rounded = (chance * 4096.0).to(tl.float16)
                    total = total * alpha + tl.sum(rounded.to(tl.float32), 1)
                    output = tl.dot(rounded, keys, output)

            some = (total > 0) | (total != total)
            output = output * tl.where(some, value_scale / tl.where(some, total, 1.0), 0.0)[:, None]
            if FORM != "bf16":
                total = total / 4096.0
            base2 = tl.where(some, top + tl.log2(tl.where(some, total, 1.0)), float("-inf"))
            if (begin == 0) & (end == tiles):
                out_at = request.to(tl.int64) * out_batch + h[:, None] * out_head + d[None, :]
                tl.store(out + out_at, output.to(out.dtype.element_ty), mask=has_head[:, None])
                if HAS_LSE:
                    tl.store(lse + request.to(tl.int64) * lse_batch + h, base2 * 0.6931471805599453, mask=has_head)
            else:
                part = (2 * worker + tl.where(begin == 0, 1, 0)).to(tl.int64) * heads + h
                tl.store(part_out + part[:, None] * 512 + d[None, :], output, mask=has_head[:, None])
                tl.store(part_lse + part, base2, mask=has_head)
