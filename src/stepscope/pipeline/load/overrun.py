"""Kernels whose recorded duration is nonsense: it runs over many later kernels of the same stream.

A stream runs its kernels one after another; with programmatic launch the next may begin a few µs early, no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

MIN_OVERRUN = 8
"""A kernel that ends only after so many later ones of its stream have begun was not recorded right."""
MIN_OVERLAP_NS = 100_000
"""Nor was it unless it overlaps them by this much; early starts overlap by up to 13 µs."""
_STREAM_BITS = 32


def without_overruns(kernels: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the kernels without those that cannot have lasted as long as recorded, and how many those were.

    Args:
        kernels: GPU work sorted by start.
    """
    start = kernels["start_ns"].to_numpy()
    end = start + kernels["duration_ns"].to_numpy()
    if not _overruns(start, end).any():  # not even if all streams were one
        return kernels, 0
    device, number = (kernels[name].fill_null(-1).cast(pl.Int64).to_numpy() for name in ("device", "stream"))
    streams = (device << _STREAM_BITS) + number
    overruns = np.zeros(kernels.height, dtype=np.bool_)
    by_stream = np.argsort(streams, kind="stable")
    for rows in np.split(by_stream, np.flatnonzero(np.diff(streams[by_stream])) + 1):
        if rows.size > MIN_OVERRUN:
            overruns[rows] = _overruns(start[rows], end[rows])
    return (kernels.filter(pl.Series(~overruns)), int(overruns.sum())) if overruns.any() else (kernels, 0)


def _overruns(start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Tell which kernels of one stream, in order of start, end long after many later ones have begun."""
    overruns = np.zeros(start.shape, dtype=np.bool_)
    has_successors = slice(0, max(start.size - MIN_OVERRUN, 0))
    ends = end[has_successors]
    overruns[has_successors] = (ends > start[MIN_OVERRUN:]) & (ends - start[1 : ends.size + 1] >= MIN_OVERLAP_NS)
    return overruns
