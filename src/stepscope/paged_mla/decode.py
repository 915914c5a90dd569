"""MLA decode attention that reads a paged FP8 (or BF16) KV pool natively."""

from __future__ import annotations

import math
import warnings

import torch

from stepscope.paged_mla.arguments import (
    LATENT,
    KvCache,
    Pages,
    Pool,
    check_output,
    check_pages,
    check_pool,
    check_queries,
    require_supported_device,
)
from stepscope.paged_mla.hopper import compile as hopper_compile
from stepscope.paged_mla.hopper import decode as hopper_decode
from stepscope.paged_mla.hopper.compile import CompilerUnavailableError
from stepscope.paged_mla.kernels.merge import merge_kernel
from stepscope.paged_mla.kernels.split import split_kernel
from stepscope.paged_mla.launch_table import chip_of, form_of
from stepscope.paged_mla.plan import MlaPlan, default_launch, interpreted, make_plan

_LOG2_E = math.log2(math.e)
_MERGE_PARTS = 8
_MERGE_DIMS = 128


def mla_decode(  # noqa: C901, PLR0912 - one line an argument that can be wrong
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    kv_cache: KvCache,
    *,
    block_table: torch.Tensor | None = None,
    kv_indptr: torch.Tensor | None = None,
    kv_indices: torch.Tensor | None = None,
    seq_lens: torch.Tensor,
    page_size: int,
    sm_scale: float,
    kv_scale: float = 1.0,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    return_lse: bool = False,
    plan: MlaPlan | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of one new token a request over its paged latent KV cache.

    Args:
        q_nope: absorbed queries ``[B, H, 512]``, bfloat16; 1 to 128 heads.
        q_pe: rotary queries ``[B, H, 64]``, bfloat16.
        kv_cache: the layer's pool, float8_e4m3fn or bfloat16: ``[slots, 1, 576]``, ``[slots, 576]`` or
            ``[pages, page_size, 576]``, or the pair of views ``[pages, page_size, 512]`` and
            ``[pages, page_size, 64]``; rows at an even distance.
        block_table: page numbers ``[B, max_pages]``, int32 or int64; or
        kv_indptr: ``[B + 1]``, where each request's pages start in
        kv_indices: ``[n]``, page numbers. A page outside the pool is not read; its tokens are left out.
        seq_lens: tokens a request ``[B]``, int32 or int64.
        page_size: tokens a page.
        sm_scale: factor of the logits, for example ``192 ** -0.5``.
        kv_scale: what one stored unit of the pool is worth.
        out: where to write, ``[B, H, 512]`` bfloat16 or float32; a new bfloat16 tensor by default.
        lse: where to write the log-sum-exp, ``[B, H]`` float32.
        return_lse: return the natural-log log-sum-exp too.
        plan: from :func:`make_plan` for these lengths and pages; made here by default.

    Returns:
        ``out``, or ``(out, lse)`` with ``return_lse``. A request without tokens gets 0 and -inf.

    Raises:
        TypeError: a dtype that is not accepted.
        ValueError: a shape, stride, device or number that is not accepted.
    """
    pages = check_pages(block_table, kv_indptr, kv_indices, page_size, seq_lens)
    check_queries(q_nope, q_pe, seq_lens)
    require_supported_device(q_nope.device, interpreted=interpreted())
    pool = check_pool(kv_cache, page_size, q_nope.device)
    batch, heads = q_nope.shape[:2]
    for name, number in (("sm_scale", sm_scale), ("kv_scale", kv_scale)):
        if not math.isfinite(number):
            raise ValueError(f"{name} is {number}; accepted: a finite number")
    if out is None:
        out = torch.empty(batch, heads, LATENT, dtype=torch.bfloat16, device=q_nope.device)
    else:
        check_output("out", out, (batch, heads, LATENT), q_nope)
    if lse is not None:
        check_output("lse", lse, (batch, heads), q_nope)
    elif return_lse:
        lse = torch.empty(batch, heads, dtype=torch.float32, device=q_nope.device)
    if plan is None:
        plan = _plan_for(q_nope, q_pe, pool, pages, seq_lens, out)
    elif plan.heads != heads or plan.lengths.shape[0] != batch:
        raise ValueError(
            f"plan is for {plan.lengths.shape[0]} requests and {plan.heads} heads; accepted: {batch} and {heads}, "
            "as q_nope has"
        )
    elif (
        pages.form != plan.pages.form or pages.page_size != plan.pages.page_size or pages.capacity < plan.pages.capacity
    ):
        raise ValueError(
            f"plan is for a {plan.pages.form} of {plan.pages.capacity} pages of {plan.pages.page_size} tokens; "
            f"accepted: at most the {pages.capacity} of {pages.page_size} that {pages.form} has"
        )
    if batch:
        score_scale, value_scale = sm_scale * kv_scale * _LOG2_E, kv_scale
        if plan.launch.kernel != "triton":
            if pool.latent.dtype != torch.float8_e4m3fn:
                raise ValueError(f"plan is for a float8_e4m3fn pool; kv_cache has dtype {pool.latent.dtype}")
            if not hopper_decode.runs_here(q_nope, q_pe, pool, out):
                raise ValueError(
                    "plan is for rows at multiples of 16 bytes, which q_nope, q_pe, kv_cache or out has not; accepted: "
                    "aligned tensors, or no plan"
                )
            hopper_decode.decode(
                q_nope, q_pe, pool, pages, plan, out, lse, score_scale=score_scale, value_scale=value_scale
            )
        else:
            _decode_triton(q_nope, q_pe, pool, pages, plan, out, lse, score_scale=score_scale, value_scale=value_scale)
    if return_lse:
        assert lse is not None  # noqa: S101 - allocated above
        return out, lse
    return out


def _plan_for(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    pool: Pool,
    pages: Pages,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
) -> MlaPlan:
    # The table's launch, or the portable one where the CUDA kernel cannot run.
    batch, heads = q_nope.shape[:2]
    launch = default_launch(q_nope.device, pool.latent.dtype, heads, batch)
    if launch.kernel != "triton" and not (hopper_decode.runs_here(q_nope, q_pe, pool, out) and _compiler_found()):
        launch = default_launch(q_nope.device, pool.latent.dtype, heads, batch, portable=True)
    table, indptr = (pages.numbers, None) if pages.indptr is None else (None, pages.indptr)
    return make_plan(
        seq_lens,
        heads=heads,
        page_size=pages.page_size,
        block_table=table,
        kv_indptr=indptr,
        kv_indices=None if indptr is None else pages.numbers,
        kv_dtype=pool.latent.dtype,
        launch=launch,
    )


def _compiler_found() -> bool:
    try:
        hopper_compile.nvrtc()
    except CompilerUnavailableError as missing:
        warnings.warn(f"{missing}; the slower Triton kernel runs instead", RuntimeWarning, stacklevel=4)
        return False
    return True


def _decode_triton(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    pool: Pool,
    pages: Pages,
    plan: MlaPlan,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    score_scale: float,
    value_scale: float,
) -> None:
    batch, heads = q_nope.shape[:2]
    launch = plan.launch
    chip = chip_of(torch.cuda.get_device_capability(q_nope.device)) if q_nope.device.type == "cuda" else 90
    form = form_of(pool.latent.dtype, chip)
    latent, rope = pool.latent, pool.rope
    if form == "bytes":
        latent, rope = latent.view(torch.uint8), rope.view(torch.uint8)
    has_indptr = pages.indptr is not None
    lse_to = plan.part_lse if lse is None else lse
    lse_batch = 0 if lse is None else lse.stride(0)
    split_kernel[(plan.workers, launch.head_blocks(heads))](
        q_nope,
        q_pe,
        latent,
        rope,
        pages.numbers,
        pages.indptr if pages.indptr is not None else plan.lengths,
        plan.lengths,
        plan.starts,
        out,
        lse_to,
        plan.part_out,
        plan.part_lse,
        q_nope.stride(0),
        q_nope.stride(1),
        q_pe.stride(0),
        q_pe.stride(1),
        latent.stride(0),
        rope.stride(0),
        pool.slots,
        0 if has_indptr else pages.numbers.stride(0),
        out.stride(0),
        out.stride(1),
        lse_batch,
        heads,
        score_scale,
        value_scale,
        PAGE_SIZE=pages.page_size,
        HAS_INDPTR=has_indptr,
        HAS_LSE=lse is not None,
        FORM=form,
        HEADS=launch.heads,
        TOKENS=launch.tokens,
        STAGES=launch.stages,
        WIDE=interpreted(),
        num_warps=launch.warps,
    )
    merge_kernel[(batch, heads, LATENT // _MERGE_DIMS)](
        plan.part_out,
        plan.part_lse,
        plan.spans,
        out,
        lse_to,
        out.stride(0),
        out.stride(1),
        lse_batch,
        heads,
        HAS_LSE=lse is not None,
        PARTS=_MERGE_PARTS,
        DIMS=_MERGE_DIMS,
        num_warps=4,
    )
