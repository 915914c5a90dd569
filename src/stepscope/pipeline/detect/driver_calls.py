"""The calls by which memory is taken from the driver and code is loaded, which a step that serves should not make."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.document import Evidence, Group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.document import Frame
    from stepscope.trace import Trace

ALLOCATES = (
    r"^(?:cuda|hip)(?:Malloc|Free|MallocHost|FreeHost|HostAlloc|HostMalloc|HostFree)$"
    r"|^(?:cu|hip)Mem(?:Create|Map|Unmap|Release|SetAccess|Alloc|AllocHost|Free|FreeHost)(?:_v2)?$"
)
"""Calls that take or give back memory of the driver; those that end in Async only queue it."""
LOADS = r"^(?:cu|hip)(?:Module|Library|Link)(?:Load\w*|AddData\w*|Complete)$"
"""Calls that load or link code."""


def driver_calls(trace: Trace) -> pl.DataFrame:
    """Return these calls, as rows of `trace.launches`."""
    return trace.launches.filter(pl.col("name").cast(pl.String).str.contains(f"{ALLOCATES}|{LOADS}"))


def driver_evidence(calls: pl.DataFrame, steps: int, frames: Sequence[Frame]) -> Evidence:
    """Return the evidence of some of these calls, by name, those with the most time first.

    Args:
        calls: rows of `trace.launches`.
        steps: the number of steps that they are of.
        frames: the functions around one of the longest.
    """
    by_name = calls.group_by(pl.col("name").cast(pl.String)).agg(pl.len(), pl.col("duration_ns").sum())
    groups = [
        Group(
            kernel=name, tensor=None, shape=None, calls_per_step=count / steps, time_us_per_step=duration / 1e3 / steps
        )
        for name, count, duration in by_name.sort("duration_ns", "name", descending=[True, False]).iter_rows()
    ]
    if not groups:
        return Evidence(frames=list(frames))
    return Evidence(
        host_call=groups[0].kernel,
        calls_per_step=groups[0].calls_per_step,
        us_per_call=groups[0].time_us_per_step / groups[0].calls_per_step,
        groups=groups,
        frames=list(frames),
    )
