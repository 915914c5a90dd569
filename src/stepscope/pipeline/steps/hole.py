"""Unrecorded work at the start of a recording: the replay that was running when the profiler started leaves a hole."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.trace import intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked

    Ints = NDArray[np.int64]

WAITS = re.compile(r"^(?:cuda|hip|cu)\w*(?:Synchronize|Memcpy\w*)$")
"""Runtime calls that can wait for the GPU; an asynchronous copy of pageable memory waits too."""
HOLE_NS = 1_000_000
"""A hole this long is more than a step's own idle time."""
UNRECORDED_SHARE = 0.9
"""So much of a hole must be the GPU's: the host waits for it, or the work after the hole had been launched."""
START_SHARE = 0.01
"""A hole is at the start where less than this share of the recording's GPU time lies before it."""


def without_hole(linked: Linked, step: Ints) -> tuple[Ints, int]:
    """Take the GPU work before an unrecorded stretch out of the first step; return the stretch's length in ns.

    In such a stretch the host waits for the GPU, or what runs next was launched and does not start, yet nothing runs.
    """
    in_steps = step[step >= 0]
    if not in_steps.size:
        return step, 0
    first = step == in_steps.min()  # not 0: of the first step marked, nothing may be recorded
    start = linked.kernels["start_ns"].to_numpy()
    end = start + linked.kernels["duration_ns"].to_numpy()
    gap_starts, gap_ends = intervals.gaps(start[first], end[first])
    lengths = gap_ends - gap_starts
    long = np.flatnonzero(lengths >= HOLE_NS)
    if not long.size:
        return step, 0
    gap_starts, gap_ends, lengths = gap_starts[long], gap_ends[long], lengths[long]
    waiting = _waiting(linked, np.searchsorted(start, gap_ends))
    waited = intervals.time_covered_before(gap_ends, *waiting) - intervals.time_covered_before(gap_starts, *waiting)
    work = intervals.union(start, end)
    early = intervals.time_covered_before(gap_starts, *work) <= START_SHARE * intervals.covered(start, end)
    holes = np.flatnonzero((waited >= UNRECORDED_SHARE * lengths) & early)
    if not holes.size:
        return step, 0
    last = holes[-1]
    return np.where(first & (start < gap_ends[last]), -1, step), int(lengths[last])


def _waiting(linked: Linked, rows: Ints) -> tuple[Ints, Ints]:
    """Return when the host waited for the GPU, or these rows of GPU work had been launched and did not start; merged.

    Only rows that end a gap tell: others may wait for work on another stream.
    """
    calls = linked.trace.launches
    call_start = calls["start_ns"].to_numpy()
    call_end = call_start + calls["duration_ns"].to_numpy()
    waits = calls["name"].cast(pl.String).str.contains(WAITS.pattern).to_numpy()
    held = linked.kernels[rows].drop_nulls("launch")
    starts = np.concatenate((call_start[waits], call_end[held["launch"].to_numpy()]))
    return intervals.union(starts, np.concatenate((call_end[waits], held["start_ns"].to_numpy())))
