"""Collects decoded events into the columns of a trace's tables, a chunk at a time."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.dtypes import item_bytes, torch_name
from stepscope.pipeline.load import kineto
from stepscope.trace import schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.load.kineto import Args

_TABLE_OF = {
    "kernel": "kernels",
    "memcpy": "kernels",
    "memset": "kernels",
    "launch": "launches",
    "op": "ops",
    "annotation": "annotations",
    "frame": "frames",
}
_TIME_LIMIT_US = 2e15  # the year 2033; sums and differences of such times fit in 64 bits as ns
_DURATION_LIMIT_US = 86_400e6  # a day; longer is damage
_FINE_TIME = re.compile(rb'"ts"\s*:\s*-?\d+\.')
_INT64_DIGITS = 19
_NO_DIMENSIONS = (None, None, None)
_OF_COLLECTIVES = ("collective", "group", "group_size", "message_bytes")
_MOST_ELEMENTS = 1 << 59  # so that their bytes fit a column
_MOST_RANKS = 1 << 31
_NO_ARGS = kineto.Args()


class _Threads(dict[tuple[Any, Any], int]):
    """Numbers threads, by (pid, tid), in the order in which they are first seen.

    In files of 2021 one thread is 5555 in one place and "5555" in another.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[tuple[str, str], int] = {}

    def __missing__(self, key: tuple[Any, Any]) -> int:
        pid, tid = key
        code = self[key] = self.names.setdefault((str(pid), str(tid)), len(self.names))
        return code


class Columns:
    """The tables of a trace under construction."""

    def __init__(self) -> None:
        self.event_count = 0
        self.rejected = 0
        self._threads = _Threads()
        self._exact = False
        self._parts: dict[str, list[pl.DataFrame]] = {name: [] for name in schema.TABLES}

    def take(self, text: bytes) -> bool:
        """Decode comma-separated events and keep them; keep nothing and return False where that fails."""
        events = self._decoded(text)
        if events is None:
            return False
        if not self._exact and _needs_exact_times(events, text):
            self._exact = True
            return self.take(text)
        self.event_count += len(events)
        groups: dict[str, list[Any]] = defaultdict(list)
        span_type = kineto.ExactSpan if self._exact else kineto.Span
        for event in events:
            if type(event) is span_type:
                groups[event.cat].append(event)
        for category, spans in groups.items():
            kind = kineto.CATEGORIES.get(category)
            if kind is not None:
                self._add(kind, spans)
        return True

    def take_each(self, events: list[bytes]) -> None:
        """Keep those of the events that can be decoded, all at once, and count the others."""
        while events and not self.take(b",".join(events)):  # a second time where the first turned to exact times
            good = [event for event in events if self._decoded(event) is not None]
            self.rejected += len(events) - len(good)
            events = good

    def reject(self) -> None:
        """Count an event that has no end, or text between events."""
        self.rejected += 1

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables, sorted by start, times relative to the first span; ends the construction."""
        starts = [part["start_ns"].to_numpy() for parts in self._parts.values() for part in parts]
        origin = min((int(column[column > 0].min()) for column in starts if (column > 0).any()), default=0)
        del starts
        return {name: self._table(name, origin) for name in schema.TABLES}

    def _table(self, name: str, origin: int) -> pl.DataFrame:
        """Join a table's parts, and let go of them, so that no more than one table is held twice."""
        empty = pl.DataFrame(schema=schema.polars_schema(schema.TABLES[name]))
        table = pl.concat([empty, *self._parts.pop(name)], rechunk=True)
        table = table.with_columns(pl.col("start_ns") - origin)
        return table if table["start_ns"].is_sorted() else table.sort("start_ns", maintain_order=True)

    def threads(self) -> tuple[tuple[str, str], ...]:
        """Return (pid, tid) by thread index."""
        return tuple(self._threads.names)

    def _decoded(self, text: bytes) -> list[Any] | None:
        decoder = kineto.EXACT_DECODER if self._exact else kineto.FLOAT_DECODER
        try:
            return decoder.decode(b"[" + text + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def _add(self, kind: str, spans: list[Any]) -> None:
        if kind == "op":  # in 2021 the profiler's steps were operators
            steps = [span for span in spans if span.name.startswith("ProfilerStep#")]
            if steps:
                self._add("annotation", steps)
                spans = [span for span in spans if not span.name.startswith("ProfilerStep#")]
        start, duration, valid = self._times(spans)
        if not valid.all():
            self.rejected += int((~valid).sum())
            spans = [span for span, keep in zip(spans, valid, strict=True) if keep]
        data: dict[str, Any] = {
            "start_ns": start[valid],
            "duration_ns": duration[valid],
            "name": [span.name for span in spans],
        }
        table = _TABLE_OF[kind]
        if table == "kernels":
            data["kind"] = [kind] * len(spans)
        else:
            data["thread"] = [self._threads[span.pid, span.tid] for span in spans]
        args = [span.args or _NO_ARGS for span in spans]
        if table in {"kernels", "launches"}:
            data["correlation"] = _integers([a.correlation for a in args])
        if table == "launches":
            data["bytes"] = _integers([a.size if a.bytes is None else a.bytes for a in args])
            data["kernel"] = _texts([a.kernel for a in args])
        if table == "kernels":
            data |= _kernel_arguments(args)
        if table == "ops":
            data["input_dims"] = [_recorded(a.input_dims) for a in args]
            data["input_types"] = [_recorded(a.input_types) for a in args]
            data["call_stack"] = _texts([a.call_stack for a in args])
            data["module_hierarchy"] = _texts([a.module_hierarchy for a in args])
        columns = schema.polars_schema(schema.TABLES[table])
        self._parts[table].append(pl.DataFrame({name: data[name] for name in columns}, schema=columns, strict=False))

    def _times(self, spans: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return starts and durations in ns, and which of them are times at all."""
        durations = np.array([span.dur for span in spans], dtype=np.float64)
        if self._exact:
            valid = np.array([span.ts.is_finite() and abs(span.ts) < _TIME_LIMIT_US for span in spans], dtype=np.bool_)
            starts = np.array(
                [
                    int(span.ts.scaleb(3).to_integral_value()) if ok else 0
                    for span, ok in zip(spans, valid, strict=True)
                ],
                dtype=np.int64,
            )
        else:
            us = np.array([span.ts for span in spans], dtype=np.float64)
            valid = np.abs(us) < _TIME_LIMIT_US
            starts = _nanoseconds(np.where(valid, us, 0.0))
        valid &= durations < _DURATION_LIMIT_US
        return starts, _nanoseconds(np.where(valid, np.maximum(durations, 0.0), 0.0)), valid


def _nanoseconds(us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Convert µs to ns without losing the whole µs' precision in a product."""
    whole = np.floor(us)
    ns: NDArray[np.int64] = whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)
    return ns


def _needs_exact_times(events: Sequence[Any], text: bytes) -> bool:
    """Tell whether times are so large and so fine that float64 loses their digits."""
    times = [event.ts for event in events if type(event) is kineto.Span]
    return bool(times) and max(times) >= kineto.FLOAT_LIMIT_US and _FINE_TIME.search(text) is not None


def _kernel_arguments(args: Sequence[Args]) -> dict[str, list[Any]]:
    grids = [a.grid if type(a.grid) is tuple else _NO_DIMENSIONS for a in args]
    blocks = [a.block if type(a.block) is tuple else _NO_DIMENSIONS for a in args]
    return {
        "device": [a.device for a in args],
        "stream": _integers([a.stream for a in args]),
        "grid_x": [grid[0] for grid in grids],
        "grid_y": [grid[1] for grid in grids],
        "grid_z": [grid[2] for grid in grids],
        "block_x": [block[0] for block in blocks],
        "block_y": [block[1] for block in blocks],
        "block_z": [block[2] for block in blocks],
        "bytes": _integers([a.bytes for a in args]),
        **_collective_arguments(args),
    }


def _collective_arguments(args: Sequence[Args]) -> dict[str, list[Any]]:
    if not any(a.group_name is not None for a in args):
        return dict.fromkeys(_OF_COLLECTIVES, [None] * len(args))
    return {
        "collective": [a.collective if type(a.collective) is str else None for a in args],
        "group": [_group(a) for a in args],
        "group_size": [_small(a.group_size) for a in args],
        "message_bytes": [_message_bytes(a) for a in args],
    }


def _group(args: Args) -> str | None:
    if type(args.group_name) is not str:
        return None
    return f"{args.group_name} {args.group_ranks}" if type(args.group_ranks) is str else args.group_name


def _message_bytes(args: Args) -> int | None:
    dtype = torch_name(args.message_dtype) if type(args.message_dtype) is str else None
    elements = args.message_elements
    if dtype is None or type(elements) is not int or not 0 <= elements < _MOST_ELEMENTS:
        return None
    return elements * item_bytes(dtype)


def _small(value: object) -> int | None:
    return value if type(value) is int and 0 < value < _MOST_RANKS else None


def _integers(values: list[int | str | None]) -> list[int | None]:
    """Return numbers, also those written as text; None for what is none."""
    if str not in set(map(type, values)):
        return values  # type: ignore[return-value] # numbers and None already
    return [_parsed(value) if isinstance(value, str) else value for value in values]


def _parsed(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < _INT64_DIGITS else None


def _recorded(raw: msgspec.Raw) -> str | None:
    """Return recorded JSON as text."""
    return bytes(raw).decode("utf-8", "replace") or None


def _texts(values: list[object]) -> list[str | None]:
    """Return texts; None for an empty one, and for what is none."""
    return [value if type(value) is str and value else None for value in values]
