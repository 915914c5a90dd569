"""The calls by which memory is taken from the driver and code is loaded, which a step that serves should not make."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
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
