"""Files to traces: decompression, streaming scan, Kineto's dialects."""

from __future__ import annotations

import gc
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.errors import NotATraceError, UsageError
from stepscope.pipeline.load.columns import Columns
from stepscope.pipeline.load.scanner import Header, MissingEventsError, Trailer, scan
from stepscope.pipeline.load.source import Source
from stepscope.trace import Trace, TraceWarning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SUFFIXES = (".json", ".json.gz")
_RANK_IN_NAME = re.compile(r"(?:^|[-_.])(?:TP-|rank[-_]?)(\d{1,9})(?!\d)", re.IGNORECASE)
_RANK_LIMIT = 10**9
_TOOL_KEYS = (
    ("nodes", "a PyTorch execution trace (graph of operators); record one with torch.profiler instead"),
    ("traces", "a collection of traces; give the trace files themselves"),
    ("schema_version", "a stepscope document; give it the trace that it was made from"),
)


def find_traces(path: str | Path) -> list[Path]:
    """Return the files that a path names: itself, or every `.json` and `.json.gz` file below a folder.

    Raises:
        UsageError: the path does not exist or cannot be looked at.
        NotATraceError: the folder holds no file that could be a trace.
    """
    path = Path(path)
    try:
        if not path.exists():
            raise UsageError(f"{path}: no such file or folder")
        if not path.is_dir():
            return [path]
        found = sorted(entry for entry in path.rglob("*") if entry.name.endswith(_SUFFIXES) and entry.is_file())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    if not found:
        raise NotATraceError(f"{path}: the folder holds no trace (no {' or '.join(_SUFFIXES)} file)")
    return found


def load(path: str | Path) -> Trace:
    """Read a Kineto trace, plain or gzip, in one pass and bounded memory.

    Raises:
        UsageError: the file does not exist or cannot be opened.
        NotATraceError: the file is no trace; the message says what it looks like instead.
    """
    path = Path(path)
    source = Source(path)
    columns = Columns()
    header: dict[str, Any] = {}
    complete, second = True, False
    try:
        with _garbage_collector_off():
            for part in scan(source.blocks(), columns):
                if isinstance(part, Header):
                    header |= _header_keys(path, part.text)
                else:
                    header |= _trailer_keys(part)
                    complete, second = part.complete, _holds_another_trace(part)
    except MissingEventsError as error:
        raise NotATraceError(f"{path}: not a profiler trace: {_looks_like(error.text)}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    if not columns.event_count:
        raise NotATraceError(f"{path}: not a profiler trace: its list of events is empty or holds no trace events")
    tables = columns.tables()
    return Trace(
        path=str(path),
        file_bytes=path.stat().st_size,
        event_count=columns.event_count,
        threads=columns.threads(),
        header=header,
        rank=_rank(header, path),
        device_name=_device_name(header, set(tables["kernels"]["device"].drop_nulls().unique())),
        warnings=(*source.warnings, *_damage(columns.rejected, complete=complete, second=second)),
        **tables,
    )


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


def _damage(rejected: int, *, complete: bool, second: bool) -> Iterator[TraceWarning]:
    if rejected:
        yield TraceWarning(
            "damaged-events", "events that could not be decoded were left out", rejected, spoils_totals=True
        )
    if not complete:
        yield TraceWarning(
            "cut-file", "the file ends inside its list of events; what precedes the cut was read", spoils_totals=True
        )
    if second:
        yield TraceWarning("second-trace", "another trace follows in the same file; only the first was read")


def _header_keys(path: Path, text: bytes) -> dict[str, Any]:
    if text.strip() == b"[":
        return {}
    try:
        keys = msgspec.json.decode(text + b"]}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotATraceError(
            f"{path}: not a profiler trace: the keys before its events are damaged ({error})"
        ) from None
    del keys["traceEvents"]
    return dict(keys)


def _trailer_keys(part: Trailer) -> dict[str, Any]:
    """Return the keys after the events; none where the trailer is damaged, since no event depends on them."""
    text = part.text.strip().removeprefix(b",")
    try:
        keys = msgspec.json.decode(b"{" + text) if text.rstrip().endswith(b"}") else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
    return keys if isinstance(keys, dict) else {}


def _holds_another_trace(part: Trailer) -> bool:
    """Tell whether traces were written one after another into one file."""
    return b'"traceEvents"' in part.text or part.text.lstrip().startswith((b"[", b"{"))


def _looks_like(text: bytes) -> str:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return 'it has no "traceEvents" and is not a list of events'
    if isinstance(document, dict):
        for key, what in _TOOL_KEYS:
            if key in document:
                return f"it looks like {what}"
        keys = ", ".join(sorted(map(str, document))[:5]) or "none"
        return f'it is JSON without "traceEvents" (its keys: {keys})'
    return "it is JSON, but neither an object nor a list of events"


def _rank(header: Mapping[str, Any], path: Path) -> int | None:
    info = header.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    if type(rank) is int and 0 <= rank < _RANK_LIMIT:
        return rank
    found = _RANK_IN_NAME.search(path.name)
    return int(found[1]) if found else None


def _device_name(header: Mapping[str, Any], used: set[int]) -> str | None:
    """Return the name of the devices in use; None where it is not recorded or several kinds are in use."""
    properties = header.get("deviceProperties")
    devices = [device for device in properties if isinstance(device, dict)] if isinstance(properties, list) else []
    in_use = [device for device in devices if device.get("id") in list(used)]
    names = {str(device.get("name") or "") for device in in_use or devices}
    return (names.pop() or None) if len(names) == 1 else None
