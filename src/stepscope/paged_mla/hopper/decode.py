"""Launches the CUDA C++ kernels for one decode call."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from stepscope.paged_mla.arguments import LATENT, ROW, Pages, Pool
from stepscope.paged_mla.hopper.driver import launch, load_function

if TYPE_CHECKING:
    from stepscope.paged_mla.launch_table import Launch
    from stepscope.paged_mla.plan import MlaPlan

_WARPS = 8  # that multiply
_QUARTER = 16
_TILE_BARRIERS = 8
_LANES = 32
_ALIGNMENT = 16


class SplitParameters(ctypes.Structure):
    """``Params`` of ``common.cuh``, field by field."""

    _fields_ = (
        ("q_nope", ctypes.c_void_p),
        ("q_pe", ctypes.c_void_p),
        ("q_nope_batch", ctypes.c_int64),
        ("q_nope_head", ctypes.c_int64),
        ("q_pe_batch", ctypes.c_int64),
        ("q_pe_head", ctypes.c_int64),
        ("latent", ctypes.c_void_p),
        ("rope", ctypes.c_void_p),
        ("latent_stride", ctypes.c_int64),
        ("rope_stride", ctypes.c_int64),
        ("slots", ctypes.c_int64),
        ("pages", ctypes.c_void_p),
        ("indptr", ctypes.c_void_p),
        ("table_stride", ctypes.c_int64),
        ("lengths", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("out_batch", ctypes.c_int64),
        ("out_head", ctypes.c_int64),
        ("lse_batch", ctypes.c_int64),
        ("part_out", ctypes.c_void_p),
        ("part_lse", ctypes.c_void_p),
        ("heads", ctypes.c_int),
        ("page_size", ctypes.c_int),
        ("wide_pages", ctypes.c_int),
        ("wide_indptr", ctypes.c_int),
        ("out_float", ctypes.c_int),
        ("score_scale", ctypes.c_float),
        ("value_scale", ctypes.c_float),
    )


class MergeParameters(ctypes.Structure):
    """``MergeParams`` of ``merge.cu``, field by field."""

    _fields_ = (
        ("part_out", ctypes.c_void_p),
        ("part_lse", ctypes.c_void_p),
        ("spans", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("out_batch", ctypes.c_int64),
        ("out_head", ctypes.c_int64),
        ("lse_batch", ctypes.c_int64),
        ("heads", ctypes.c_int),
        ("lanes", ctypes.c_int),
        ("groups", ctypes.c_int),
        ("out_float", ctypes.c_int),
    )


def split_defines(chosen: Launch) -> tuple[tuple[str, int], ...]:
    """The macros that make a ``.cu`` file the kernel of a launch."""
    return (
        ("HEADS", chosen.heads),
        ("STAGES", chosen.stages),
        ("MIN_BLOCKS", chosen.blocks_per_sm),
    )


def split_shared_bytes(chosen: Launch) -> int:
    """Dynamic shared memory of one block, in the order in which the kernel lays it out."""
    heads = chosen.heads
    tops = _WARPS * heads * 4
    if chosen.kernel == "wgmma":
        queries_and_chances = (9 + 2) * heads * 128
        ring = chosen.stages * _QUARTER * (ROW + 1)
        factors_and_shifts = (1 + 4) * heads * 4
        return queries_and_chances + ring + tops + factors_and_shifts + (2 * _TILE_BARRIERS + 3) * 8 + 2 * 4
    tiles = chosen.stages * chosen.tokens * (ROW + 1)
    swapped = _WARPS * (heads // 8) * _LANES * 8
    return tiles + swapped + 2 * heads * 160 + tops


def merge_shape(batch: int, heads: int, workers: int) -> tuple[int, int, int]:
    """Lanes and groups of a merge block, and loads in flight: more where few requests have many parts each."""
    parts = 1 + workers // max(batch, 1)
    if parts <= 8:
        return 128, 1, 4
    if batch * heads >= 128 or parts <= 32:
        return 128, 4, 4
    return 32, 16, 8


def runs_here(q_nope: torch.Tensor, q_pe: torch.Tensor, pool: Pool, out: torch.Tensor) -> bool:
    """Whether all rows start at multiples of 16 bytes, as the kernel's loads and stores need."""
    tensors = (q_nope, q_pe, pool.latent, pool.rope, out)
    return all(
        t.data_ptr() % _ALIGNMENT == 0
        and all(s * t.element_size() % _ALIGNMENT == 0 for s, n in zip(t.stride()[:-1], t.shape, strict=False) if n > 1)
        for t in tensors
    )


def decode(
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
    """Run the split kernel and ``merge``; arguments as checked by :func:`stepscope.paged_mla.mla_decode`."""
    batch, heads = q_nope.shape[:2]
    device = q_nope.device
    index = device.index if device.index is not None else torch.cuda.current_device()
    numbers, indptr = pages.numbers, pages.indptr
    out_float = int(out.dtype == torch.float32)
    lse_at = None if lse is None else lse.data_ptr()
    lse_batch = 0 if lse is None else lse.stride(0)
    split = SplitParameters(
        q_nope=q_nope.data_ptr(),
        q_pe=q_pe.data_ptr(),
        q_nope_batch=q_nope.stride(0),
        q_nope_head=q_nope.stride(1),
        q_pe_batch=q_pe.stride(0),
        q_pe_head=q_pe.stride(1),
        latent=pool.latent.data_ptr(),
        rope=pool.rope.data_ptr(),
        latent_stride=pool.latent.stride(0),
        rope_stride=pool.rope.stride(0),
        slots=pool.slots,
        pages=numbers.data_ptr(),
        indptr=None if indptr is None else indptr.data_ptr(),
        table_stride=0 if indptr is not None else numbers.stride(0),
        lengths=plan.lengths.data_ptr(),
        starts=plan.starts.data_ptr(),
        out=out.data_ptr(),
        lse=lse_at,
        out_batch=out.stride(0),
        out_head=out.stride(1),
        lse_batch=lse_batch,
        part_out=plan.part_out.data_ptr(),
        part_lse=plan.part_lse.data_ptr(),
        heads=heads,
        page_size=pages.page_size,
        wide_pages=int(numbers.dtype == torch.int64),
        wide_indptr=int(indptr is not None and indptr.dtype == torch.int64),
        out_float=out_float,
        score_scale=score_scale,
        value_scale=value_scale,
    )
    chosen = plan.launch
    shared = split_shared_bytes(chosen)
    function = load_function(index, f"split_{chosen.kernel}", f"split_{chosen.kernel}", shared, split_defines(chosen))
    launch(function, device, (plan.workers, chosen.head_blocks(heads), 1), chosen.warps * 32, shared, split)

    lanes, groups, in_flight = merge_shape(batch, heads, plan.workers)
    merge = MergeParameters(
        part_out=plan.part_out.data_ptr(),
        part_lse=plan.part_lse.data_ptr(),
        spans=plan.spans.data_ptr(),
        out=out.data_ptr(),
        lse=lse_at,
        out_batch=out.stride(0),
        out_head=out.stride(1),
        lse_batch=lse_batch,
        heads=heads,
        lanes=lanes,
        groups=groups,
        out_float=out_float,
    )
    shared = groups * lanes * 16 if groups > 1 else 0
    function = load_function(index, "merge", "merge", shared, (("BATCH", in_flight),))
    launch(function, device, (batch, heads, LATENT // 4 // lanes), lanes * groups, shared, merge)
