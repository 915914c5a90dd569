"""A trace in memory: immutable, columnar, one table a kind of event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl


@dataclass(frozen=True, slots=True)
class TraceWarning:
    """Something about a trace that its reader must know before believing numbers from it."""

    code: str
    message: str
    count: int = 1
    spoils_totals: bool = False
    """True where idle time or a total cannot be believed: the trace is incomplete."""
    is_note: bool = False
    """True where every figure can be believed: it says what they are of, or what else could have been recorded."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One profile file. Times are integer ns relative to the first span; the columns are declared in `schema`."""

    path: str
    file_bytes: int
    """Bytes of the file as it lies on disk."""
    event_count: int
    """Rows of `traceEvents` that were read, of every phase."""
    kernels: pl.DataFrame
    launches: pl.DataFrame
    ops: pl.DataFrame
    annotations: pl.DataFrame
    frames: pl.DataFrame
    threads: tuple[tuple[str, str], ...]
    """(pid, tid) as recorded, by thread index."""
    header: Mapping[str, Any]
    """Top-level keys of the file other than `traceEvents`."""
    rank: int | None
    device_name: str | None
    warnings: tuple[TraceWarning, ...] = field(default=())
