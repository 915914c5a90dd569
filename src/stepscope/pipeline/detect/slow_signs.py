"""What of a multiplication tells why it is slow: its grid, how K is split, sizes that are not aligned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.detect.device import multiprocessors
from stepscope.pipeline.detect.multiplications import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.pipeline.detect.multiplications import Multiplication
    from stepscope.trace import Trace

FEW_BLOCKS = 1.5
"""So many blocks a multiprocessor are too few to hide the memory's latency (onnxruntime#32382: 1.1 reach 16%, 3.4 reach
42%, 219 reach 95%)."""
ALIGNED = 8
"""Rows of 16-bit values that are no multiple of 16 bytes are read in smaller pieces."""


def slow_signs(trace: Trace, found: Multiplication) -> Iterator[str]:
    """Yield each sign as a clause."""
    count, processors = blocks(found), multiprocessors(trace)
    if count and processors and count <= FEW_BLOCKS * processors and count != processors:
        yield f"its {count:,} blocks on {processors} multiprocessors are too few to hide the memory's latency"
    added_us = sum(group.time_us_per_step for group in found.worked.kernels if _adds_up(group.kernel))
    if 2 * added_us > sum(group.time_us_per_step for group in found.worked.kernels):
        yield "adding up the parts of K takes longer than multiplying"
    odd = [size for size in (found.gemm.n, found.gemm.k) if size % ALIGNED] if found.gemm else []
    if odd:
        yield f"{odd[0]:,} is no multiple of {ALIGNED}, so that rows are read in small pieces"


def _adds_up(kernel: str) -> bool:
    name = kernel.lower()
    return "reduce" in name and "split" in name
