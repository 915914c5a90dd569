"""Kernels whose recorded duration is nonsense: it runs over many later kernels of the same stream.

A stream runs its kernels one after another; with programmatic launch the next may begin a few µs early, no more.
"""

from __future__ import annotations

import numpy as np
import polars as pl

MIN_OVERRUN = 8
"""A kernel that ends only after so many later ones of its stream have begun was not recorded right."""
MIN_OVERLAP_NS = 100_000
"""Nor was it unless it overlaps them by this much; early starts overlap by up to 13 µs."""


def without_overruns(kernels: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the kernels without those that cannot have lasted as long as recorded, and how many those were.

    Args:
        kernels: GPU work sorted by start.
    """
    overruns = np.zeros(kernels.height, dtype=np.bool_)
    rows = kernels.select("start_ns", "duration_ns", "device", "stream").with_row_index("row")
    for stream in rows.partition_by("device", "stream"):
        start = stream["start_ns"].to_numpy()
        end = start + stream["duration_ns"].to_numpy()
        if start.size <= MIN_OVERRUN:
            continue
        begun = np.searchsorted(start, end, side="left") - np.arange(start.size) - 1
        next_start = np.append(start[1:], end[-1])
        bad = (begun >= MIN_OVERRUN) & (end - next_start >= MIN_OVERLAP_NS)
        overruns[stream["row"].to_numpy()[bad]] = True
    return (kernels.filter(pl.Series(~overruns)), int(overruns.sum())) if overruns.any() else (kernels, 0)
