"""Where a thread that launches waits for one that computes on the CPU: experts that are kept there, say."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stepscope.trace import intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.trace import Trace

    Ints = NDArray[np.int64]

HANDOVER_NS = 500_000
"""A thread that does nothing for this long, while another one works, may be waiting for that one."""
MOST_DELAY_NS = 200_000
"""From the end of what is waited for to what the thread does next."""
MIN_COVERED = 0.9
"""Of the silence: the other thread computes through it."""
_OP = r"^\w+::"
"""What is computed; other names are of a program's own ranges, which may hold nothing but waiting."""


class Join(NamedTuple):
    """A thread that launches was silent until another one, which launches nothing, had computed something."""

    thread: int
    since: int
    """End of its last call or op before, in ns."""
    at: int
    """Start of what it did next."""
    source: int
    """The other thread."""


def joins(trace: Trace) -> list[Join]:
    """Return where threads that launch waited for those that launch nothing, by time.

    A profiler records few such threads: torch's, none unless it is told to.
    """
    return sorted(_joins(trace), key=lambda join: join.at)


def _joins(trace: Trace) -> Iterator[Join]:
    calls, ops = trace.launches, trace.ops
    launching = calls["thread"].unique()
    works = ops.filter(~pl.col("thread").is_in(launching.implode()))
    works = works.filter(pl.col("name").cast(pl.String).str.contains(_OP))
    if works.is_empty():
        return
    did = pl.concat([table.select("thread", "start_ns", "duration_ns") for table in (calls, ops)])
    for thread in launching.sort().to_list():
        since, at = intervals.gaps(*_times(did, thread))
        silent = at - since >= HANDOVER_NS
        since, at = since[silent], at[silent]
        for source in works["thread"].unique().sort().to_list():
            for row in _joined(since, at, *intervals.union(*_times(works, source))).tolist():
                yield Join(thread, int(since[row]), int(at[row]), source)


def _times(table: pl.DataFrame, thread: int) -> tuple[Ints, Ints]:
    mine = table.filter(pl.col("thread") == thread)
    start = mine["start_ns"].to_numpy()
    return start, start + mine["duration_ns"].to_numpy()


def _joined(since: Ints, at: Ints, start: Ints, end: Ints) -> Ints:
    """Return which silences another thread computed through, and ended with its work.

    Args:
        since: shape [silences].
        at: shape [silences].
        start: shape [works], sorted; of the other thread.
        end: shape [works].
    """
    until, before = (intervals.time_covered_before(moment, start, end) for moment in (at, since))
    last = np.searchsorted(end, at, side="right") - 1
    done = np.where(last >= 0, end[last], since)
    through = until - before >= MIN_COVERED * (at - since)
    return np.flatnonzero(through & (done > since) & (at - done <= MOST_DELAY_NS))
