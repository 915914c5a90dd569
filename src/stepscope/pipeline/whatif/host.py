"""What the host did for the device: when it had handed work over, and which of its calls waited for work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.steps import WAITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked

    Ints = NDArray[np.int64]

RETURN_DELAY_NS = 200_000
"""A waiting call that returns later than this after GPU work ended was not waiting for that work."""
NEVER = -(1 << 62)
"""Stands for a moment before all others."""


def issued(linked: Linked, launch: Ints, end: Ints) -> Ints:
    """Return when the host had handed over each row's work: its call's end, or the start of a copy that blocks."""
    calls = linked.trace.launches
    if not calls.height:
        return np.full(launch.shape, NEVER)
    call_start = calls["start_ns"].to_numpy()
    call_end = call_start + calls["duration_ns"].to_numpy()
    is_copy = calls["name"].cast(pl.String).str.contains("Memcpy").to_numpy()
    blocks = is_copy[launch] & (call_end[launch] >= end)
    return np.where(launch < 0, NEVER, np.where(blocks, call_start[launch], call_end[launch]))


@dataclass(frozen=True, slots=True)
class Wait:
    """A host call that returned because GPU work was done."""

    start: int
    end: int
    target: int
    """Row of the work."""
    delay: int
    """From the end of the work to the return."""


def find_waits(linked: Linked, end: Ints, launch: Ints) -> list[Wait]:
    """Find the calls that waited: synchronisations that returned just after work ended, copies after their own."""
    calls = linked.trace.launches.with_row_index("row").filter(
        pl.col("name").cast(pl.String).str.contains(WAITS.pattern)
    )
    by_end = np.argsort(end, kind="stable")
    sorted_end = end[by_end]
    last_of_launch = np.full(linked.trace.launches.height, -1)
    np.maximum.at(last_of_launch, launch[launch >= 0], np.flatnonzero(launch >= 0))
    waits = []
    for row, call_start, duration, name in calls.select(
        "row", "start_ns", "duration_ns", pl.col("name").cast(pl.String)
    ).iter_rows():
        call_end = call_start + duration
        if "Memcpy" in name:
            target = int(last_of_launch[row])
        else:
            position = int(np.searchsorted(sorted_end, call_end, side="right")) - 1
            target = int(by_end[position]) if position >= 0 else -1
        if target >= 0 and call_start < end[target] <= call_end and call_end - end[target] <= RETURN_DELAY_NS:
            waits.append(Wait(call_start, call_end, target, int(call_end - end[target])))
    return sorted(waits, key=lambda wait: wait.end)
