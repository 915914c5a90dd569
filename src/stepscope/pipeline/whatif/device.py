"""The device's part of a timeline: streams of GPU work, and what work of one stream waits for on another.

Work on a stream runs in order. Across streams, a call of `cudaStreamWaitEvent` makes what is launched next wait for
what was launched before the event was recorded; a trace tells of the calls, not of their streams, so every stream is
taken to be meant of which the recording does not show that it went on. Where nothing tells (within a graph, which has
no such calls; work without a launch; a recording without any calls on events), work is taken to wait for all that had
ended before it began, so that a replay keeps the recorded order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

MOST_STREAMS = 24
"""Every pair of streams is a pass over the trace; the rest of the streams count as one."""
_EVENT = "EventRecord"
_WAIT = "StreamWaitEvent"


@dataclass(frozen=True, slots=True)
class Edges:
    """GPU work that waits for work of another stream, sorted by what waits; each waits for what began before it."""

    before: Ints
    """Shape [edges]: rows that must end."""
    after: Ints
    """Shape [edges]: rows that wait for it."""


class Device:
    """The streams of a trace: GPU work by stream, in order of start."""

    def __init__(self, linked: Linked, launch: Ints) -> None:
        kernels = linked.kernels
        self._linked = linked
        self.launch = launch
        """Shape [rows]: row in `trace.launches`; -1: not known."""
        self.start = kernels["start_ns"].to_numpy()
        self.end = self.start + kernels["duration_ns"].to_numpy()
        self.stream = _streams(kernels)
        """Shape [rows], counted from 0, the busiest first."""
        self.order = np.argsort(self.stream, kind="stable")
        """Shape [rows]: stream after stream, each in order of start."""
        self.opens = np.concatenate(([True], np.diff(self.stream[self.order]) != 0))[: self.order.size]
        """Shape [rows], in that order: whether a stream begins."""
        self.previous = np.full(self.start.shape, -1)
        """Shape [rows]: the row before on the same stream; -1: none."""
        self.previous[self.order[1:]] = np.where(self.opens[1:], -1, self.order[:-1])

    def edges(self) -> Edges:
        """Return what waits for what across streams."""
        if self._streams() < 2:
            return _NO_EDGES
        calls = self._linked.trace.launches["name"].cast(pl.String)
        if not calls.str.contains(_EVENT).any():
            return self.as_recorded()
        graph = _is_graph(self.launch)
        observed = self.as_recorded()
        inside = graph[observed.after] & (self.launch[observed.before] == self.launch[observed.after])
        untold = (self.launch[observed.after] < 0) | inside
        told = list(self._told(calls))
        return _edges(
            np.concatenate((observed.before[untold], *(before for before, _ in told))),
            np.concatenate((observed.after[untold], *(after for _, after in told))),
        )

    def as_recorded(self) -> Edges:
        """Return the edges that keep work behind all that had ended on other streams before it began."""
        before, after = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for other in range(self._streams()):
            rows = np.flatnonzero(self.stream == other)
            by_end = rows[np.argsort(self.end[rows], kind="stable")]
            waiting = np.flatnonzero(self.stream != other)
            ended = np.searchsorted(self.end[by_end], self.start[waiting], side="right") - 1
            last = np.full(self.start.size + 1, -1)  # the row that is no row stands at the end
            last[waiting] = np.where(ended >= 0, by_end[ended], -1)
            waiting = waiting[(last[waiting] >= 0) & (last[waiting] != last[self.previous[waiting]])]
            before.append(last[waiting])
            after.append(waiting)
        return _edges(np.concatenate(before), np.concatenate(after))

    def rows_by_stream(self) -> list[Ints]:
        """Return the rows of each stream, in order of start."""
        return np.split(self.order, np.flatnonzero(self.opens)[1:]) if self.order.size else []

    def _streams(self) -> int:
        return int(self.stream.max()) + 1 if self.stream.size else 0

    def _told(self, calls: pl.Series) -> Iterator[tuple[Ints, Ints]]:
        """Yield the edges that calls of the host tell: (rows before, rows after) for each pair of streams."""
        table = self._linked.trace.launches
        call_start = table["start_ns"].to_numpy()
        waits = call_start[calls.str.contains(_WAIT).to_numpy()]
        records = call_start[calls.str.contains(_EVENT).to_numpy()]
        recorded = np.searchsorted(records, waits) - 1
        waits, recorded = waits[recorded >= 0], records[recorded[recorded >= 0]]
        known = self.launch >= 0
        launched = np.where(known, call_start[self.launch], 0)
        by_stream = [
            rows[np.argsort(launched[rows], kind="stable")]
            for number in range(self._streams())
            if (rows := np.flatnonzero(known & (self.stream == number))).size
        ]
        for rows in by_stream:
            position = np.searchsorted(launched[rows], waits)
            for others in by_stream:
                if others is rows:
                    continue
                last = np.searchsorted(launched[others], recorded, side="right") - 1
                both = (position < rows.size) & (last >= 0)
                after, before = rows[position[both]], others[last[both]]
                held = self.end[before] <= self.start[after]  # else the recording shows that it did not wait
                yield before[held], after[held]


def _streams(kernels: pl.DataFrame) -> Ints:
    """Number the streams by how much work they have; a stream's own number says nothing without its device."""
    queues = kernels.select(pl.col("device").fill_null(0), pl.col("stream").fill_null(0))
    ranked = queues.group_by("device", "stream").len().sort("len", "device", "stream", descending=[True, False, False])
    ranked = ranked.with_row_index("number")
    numbered = queues.join(ranked, on=["device", "stream"], how="left", maintain_order="left")
    number: Ints = np.minimum(numbered["number"].cast(pl.Int64).to_numpy(), MOST_STREAMS - 1)
    return number


def _is_graph(launch: Ints) -> Bools:
    """Tell which rows share their launch with others."""
    counts = np.bincount(np.maximum(launch, 0), weights=launch >= 0)
    shared: Bools = (launch >= 0) & (counts[np.maximum(launch, 0)] > 1)
    return shared


def _edges(before: Ints, after: Ints) -> Edges:
    forward = before < after
    pairs = np.unique(np.stack((after[forward], before[forward]), axis=1), axis=0)
    return Edges(pairs[:, 1], pairs[:, 0])


_NO_EDGES = Edges(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
