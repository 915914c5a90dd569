"""Casting what must be cast, at the memory's speed: only the referenced slots, or (rarely) a whole pool.

torch casts e4m3 at about a quarter of the copy rate, because its kernel moves one element a thread at a time.
"""

from __future__ import annotations

import torch
import triton

from stepscope.paged_mla.arguments import (
    INDEX_DTYPES,
    POOL_DTYPES,
    require_device,
    require_dtype,
    require_supported_device,
    require_tensor,
    shape_of,
)
from stepscope.paged_mla.kernels.copies import cast_kernel, gather_cast_kernel
from stepscope.paged_mla.launch_table import chip_of, form_of
from stepscope.paged_mla.plan import interpreted

_TARGETS = (torch.bfloat16, torch.float16, torch.float32)
_BLOCK = 8192
_ROWS = 8


def _source(name: str, pool: torch.Tensor) -> tuple[torch.Tensor, str]:
    # The pool as kernels read it (bytes before sm_89), and the form of that.
    require_dtype(name, require_tensor(name, pool), POOL_DTYPES)
    require_supported_device(pool.device, interpreted=interpreted())
    chip = chip_of(torch.cuda.get_device_capability(pool.device)) if pool.device.type == "cuda" else 90
    form = form_of(pool.dtype, chip)
    return (pool.view(torch.uint8) if form == "bytes" else pool), form


def cast(pool: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The whole pool in another dtype.

    Args:
        pool: contiguous, float8_e4m3fn or bfloat16, any shape.
        dtype: bfloat16, float16 or float32.

    Returns:
        A new tensor of the pool's shape, equal to ``pool.to(dtype)``.

    Raises:
        TypeError: a dtype that is not accepted.
        ValueError: a pool that is not contiguous, or a device that is not accepted.
    """
    source, form = _source("pool", pool)
    if dtype not in _TARGETS:
        raise TypeError(f"dtype is {dtype}; accepted: {', '.join(str(d) for d in _TARGETS)}")
    if not pool.is_contiguous():
        raise ValueError(f"pool has strides {tuple(pool.stride())}; accepted: a contiguous tensor")
    out = torch.empty(pool.shape, dtype=dtype, device=pool.device)
    size = pool.numel()
    if size:
        cast_kernel[(triton.cdiv(size, _BLOCK),)](source, out, size, FORM=form, BLOCK=_BLOCK, num_warps=8)
    return out


def gather_cast(pool: torch.Tensor, indices: torch.Tensor, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    """Some slots of a pool in another dtype, in the order of ``indices``, reading nothing else.

    Args:
        pool: ``[slots, width]`` or ``[slots, 1, width]``, float8_e4m3fn or bfloat16; last axis contiguous.
        indices: ``[n]`` int32 or int64 slots; a row of zeros stands for one outside the pool.
        dtype: bfloat16, float16 or float32.
        scale: what one stored unit is worth.

    Returns:
        ``[n, width]``, contiguous: ``pool[indices].float() * scale`` rounded once.

    Raises:
        TypeError: a dtype that is not accepted.
        ValueError: a shape, stride or device that is not accepted.
    """
    source, form = _source("pool", pool)
    require_dtype("indices", require_tensor("indices", indices), INDEX_DTYPES)
    require_device("indices", indices, pool.device, "pool")
    if dtype not in _TARGETS:
        raise TypeError(f"dtype is {dtype}; accepted: {', '.join(str(d) for d in _TARGETS)}")
    if pool.dim() not in (2, 3) or (pool.dim() == 3 and pool.shape[1] != 1) or pool.shape[0] == 0:
        raise ValueError(f"pool has shape {shape_of(pool)}; accepted: [slots, width] or [slots, 1, width]")
    if pool.stride(-1) != 1:
        raise ValueError(f"pool has stride {pool.stride(-1)} in its last axis; accepted: 1")
    if indices.dim() != 1 or not indices.is_contiguous():
        raise ValueError(f"indices has shape {shape_of(indices)}; accepted: [n], contiguous")
    width, count = pool.shape[-1], indices.shape[0]
    out = torch.empty(count, width, dtype=dtype, device=pool.device)
    if count:
        gather_cast_kernel[(triton.cdiv(count, _ROWS),)](
            source,
            indices,
            out,
            count,
            pool.shape[0],
            pool.stride(0),
            scale,
            FORM=form,
            WIDTH=width,
            ROWS=_ROWS,
            COLUMNS=min(512, triton.next_power_of_2(width)),
            num_warps=4,
        )
    return out
