"""Files to traces: decompression, streaming scan, Kineto's dialects, and a cache of what was read before."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from stepscope.errors import NotATraceError, UsageError
from stepscope.pipeline.load.cache import Cache
from stepscope.pipeline.load.columns import Columns
from stepscope.pipeline.load.find import find_traces, is_folder
from stepscope.pipeline.load.header import (
    device_name,
    header_keys,
    holds_another_trace,
    looks_like,
    rank_of,
    trailer_keys,
)
from stepscope.pipeline.load.listener import Listener, Silent
from stepscope.pipeline.load.overrun import without_overruns
from stepscope.pipeline.load.scanner import Header, MissingEventsError, Trailer, scan
from stepscope.pipeline.load.source import Source
from stepscope.trace import Trace, TraceWarning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Cache", "Listener", "Silent", "find_traces", "is_folder", "load"]


def load(path: str | Path, *, listener: Listener | None = None, cache: Cache | None = None) -> Trace:
    """Read a Kineto trace, plain, gzip or zstd, in one pass and bounded memory.

    Args:
        path: a file, `-` for stdin, or a URL that fsspec knows.
        listener: told how far reading is.
        cache: where a local file's columns are kept, so that it need not be read again.

    Raises:
        UsageError: the file does not exist or cannot be read.
        NotATraceError: the file is no trace; the message says what it looks like instead.
    """
    source = Source(str(path))
    if cache is None or not source.is_local:
        return _read(source, listener or Silent())
    key = cache.key(source.location)
    trace = cache.find(source.location, key)
    if trace is None:
        trace = _read(source, listener or Silent())
        cache.keep(trace, key)
    return trace


def _read(source: Source, listener: Listener) -> Trace:
    columns = Columns()
    header: dict[str, Any] = {}
    trailer = Trailer(b"", complete=True)
    location = source.location
    try:
        with _garbage_collector_off():
            for part in scan(_listened(source, columns, listener), columns):
                if isinstance(part, Header):
                    header |= header_keys(location, part.text)
                else:
                    header |= trailer_keys(part)
                    trailer = part
    except MissingEventsError as error:
        raise NotATraceError(f"{location}: not a profiler trace: {looks_like(error.text)}") from None
    except OSError as error:
        raise UsageError(f"{location}: cannot be read ({error.strerror or error})") from error
    if not columns.event_count:
        raise NotATraceError(f"{location}: not a profiler trace: its list of events is empty or holds no trace events")
    tables = columns.tables()
    tables["kernels"], overruns = without_overruns(tables["kernels"])
    return Trace(
        path=location,
        file_bytes=source.bytes_read,
        event_count=columns.event_count,
        threads=columns.threads(),
        header=header,
        rank=rank_of(header, PurePath(location).name),
        device_name=device_name(header, set(tables["kernels"]["device"].drop_nulls().unique())),
        warnings=(*source.warnings, *_damage(columns.rejected, overruns, trailer)),
        **tables,
    )


def _listened(source: Source, columns: Columns, listener: Listener) -> Iterator[bytes]:
    for number, block in enumerate(source.blocks()):
        if number == 0:
            listener.begins(source.location, source.size)
        yield block
        listener.advances(source.bytes_read, columns.event_count)


@contextmanager
def _garbage_collector_off() -> Iterator[None]:
    """Decoding makes millions of objects without cycles; looking for cycles among them costs more than decoding."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _damage(rejected: int, overruns: int, trailer: Trailer) -> Iterator[TraceWarning]:
    if rejected:
        yield TraceWarning(
            "damaged-events", "events that could not be decoded were left out", rejected, spoils_totals=True
        )
    if overruns:
        message = "kernels that would run over many later ones of their stream were left out of every sum"
        yield TraceWarning("overrunning-durations", message, overruns, spoils_totals=True)
    if trailer.odd_commas:
        message = "commas between events are missing or doubled; every event was read"
        yield TraceWarning("odd-commas", message, trailer.odd_commas)
    if not trailer.complete:
        yield TraceWarning(
            "cut-file", "the file ends inside its list of events; what precedes the cut was read", spoils_totals=True
        )
    if holds_another_trace(trailer):
        yield TraceWarning("second-trace", "another trace follows in the same file; only the first was read")
