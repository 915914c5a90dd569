"""The host's part of a timeline: threads that launch, and calls that return once GPU work is done.

Each thread has a clock of its own. What comes after a wait that returns earlier, or after time that the host does not
spend any more, moves up with it, on that thread. A thread that made no call for a while, in which another did, goes on
from where that one was: so the forward and the backward pass follow each other in training. One that waited for what a
thread without launches computed goes on when it did: that takes as long as it took.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.steps import WAITS
from stepscope.pipeline.whatif.joins import HANDOVER_NS, joins
from stepscope.trace import intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.whatif.device import Device

    Ints = NDArray[np.int64]

RETURN_DELAY_NS = 200_000
"""A waiting call that returns later than this after GPU work ended was not waiting for that work."""
NEVER = -(1 << 62)
"""Stands for a moment before all others."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A host call that returns once GPU work is done."""

    call: int
    """Row of `trace.launches`."""
    thread: int
    start: int
    end: int
    targets: tuple[int, ...]
    """Rows of the work: as a trace does not tell which stream is meant, the last of every stream that was done."""
    delay: int
    """From the end of the work to the return; the call takes as long if the work is done before."""
    earlier: int
    """Number of the wait whose return its start follows, as `Host.wait_before` counts; 0: none."""


@dataclass(frozen=True, slots=True)
class _Handover:
    at: int
    """Start of the first call of the thread that goes on."""
    thread: int
    source: int
    """The thread that it goes on from."""


class Host:
    """The threads of a trace that call the runtime, and what they waited for."""

    def __init__(self, linked: Linked, device: Device) -> None:
        calls = linked.trace.launches
        self._thread = calls["thread"].cast(pl.Int64).to_numpy()
        self._start = calls["start_ns"].to_numpy()
        self._end = self._start + calls["duration_ns"].to_numpy()
        self.joins = joins(linked.trace)
        """Where threads waited for others, which launch nothing."""
        turns = [_Handover(join.at, join.thread, join.source) for join in self.joins]
        turns = [*_handovers(self._thread, self._start, self._end), *turns]
        self._handovers = sorted(turns, key=lambda turn: turn.at)
        known = np.flatnonzero(device.launch >= 0)
        launch = device.launch[known]
        is_copy = calls["name"].cast(pl.String).str.contains("Memcpy").to_numpy()
        blocks = is_copy[launch] & (self._end[launch] >= device.end[known])
        self.issued = np.full(device.launch.shape, NEVER)
        """Shape [rows]: when the work was handed over: its call's end, or the start of a copy that blocks."""
        self.issued[known] = np.where(blocks, self._start[launch], self._end[launch])
        self.issuer = np.full(device.launch.shape, -1)
        """Shape [rows]: the thread that launched the work; -1: not known."""
        self.issuer[known] = self._thread[launch]
        self.waits, self._governed = self._in_order(_waits(linked, device))

    def wait_before(self, thread: Ints, at: Ints) -> Ints:
        """Return the number, from 1, of the last wait that a thread's clock at these times follows; 0: none."""
        found = np.zeros(at.shape, dtype=np.int64)
        for number, mine in _by_thread(thread):
            if number in self._governed:
                times, waits = self._governed[number]
                position = np.searchsorted(times, at[mine], side="right")
                found[mine] = np.concatenate(([0], waits))[position]
        return found

    def freed_before(self, gone: Ints, thread: Ints, at: Ints) -> Ints:
        """Return how much of the time before these moments is gone on the clock of their thread, in ns.

        Args:
            gone: shape [n, 3], as `Change.host_gone`.
            thread: shape [m].
            at: shape [m].
        """
        freed = np.zeros(at.shape, dtype=np.int64)
        if not gone.size:
            return freed
        merged = {number: intervals.union(*gone[mine, 1:].T) for number, mine in _by_thread(gone[:, 0])}
        given: dict[int, list[tuple[int, int]]] = {}  # by thread: (moment, what is gone besides its own time from then)

        def at_moment(number: int, moment: int) -> int:
            own = int(intervals.time_covered_before(np.array([moment]), *merged[number])[0]) if number in merged else 0
            return own + (given[number][-1][1] if number in given else 0)

        for turn in self._handovers:
            before = given.get(turn.thread, [(0, 0)])[-1][1]
            now = at_moment(turn.source, turn.at) - at_moment(turn.thread, turn.at) + before
            given.setdefault(turn.thread, []).append((turn.at, now))
        for number, mine in _by_thread(thread):
            if number in merged:
                freed[mine] = intervals.time_covered_before(at[mine], *merged[number])
            if number in given:
                times, besides = zip(*given[number], strict=True)
                freed[mine] += np.array((0, *besides))[np.searchsorted(times, at[mine], side="right")]
        return freed

    def left(self, gone: Ints) -> list[Wait]:
        """Return the waits on clocks without the time that is gone (`Change.host_gone`); those in it take no time."""
        thread = np.array([wait.thread for wait in self.waits], dtype=np.int64)
        start, end = (
            np.array([getattr(wait, name) for wait in self.waits], dtype=np.int64) for name in ("start", "end")
        )
        start, end = (at - self.freed_before(gone, thread, at) for at in (start, end))
        return [
            replace(wait, start=begins, end=ends)
            for wait, begins, ends in zip(self.waits, start.tolist(), end.tolist(), strict=True)
        ]

    def _in_order(self, found: list[Wait]) -> tuple[list[Wait], dict[int, tuple[Ints, Ints]]]:
        """Chain the waits: each starts on a clock that an earlier one may have set, of its thread or by a handover."""
        current: dict[int, int] = {}
        governed: dict[int, tuple[list[int], list[int]]] = {}
        waits: list[Wait] = []
        turns = iter([*self._handovers, None])
        turn = next(turns)

        def set_clock(thread: int, at: int, number: int) -> None:
            current[thread] = number
            times, numbers = governed.setdefault(thread, ([], []))
            times.append(at)
            numbers.append(number)

        for wait in sorted(found, key=lambda wait: wait.end):
            while turn is not None and turn.at <= wait.end:
                set_clock(turn.thread, turn.at, current.get(turn.source, 0))
                turn = next(turns)
            earlier = current.get(wait.thread, 0)
            waits.append(replace(wait, earlier=earlier))
            set_clock(wait.thread, wait.end, len(waits))
        while turn is not None:
            set_clock(turn.thread, turn.at, current.get(turn.source, 0))
            turn = next(turns)
        return waits, {thread: (np.array(times), np.array(numbers)) for thread, (times, numbers) in governed.items()}


def _handovers(thread: Ints, start: Ints, end: Ints) -> Iterator[_Handover]:
    """Find where a thread goes on from another: it was silent, and another one began a call in the meantime.

    Args:
        thread: shape [calls].
        start: shape [calls], sorted.
        end: shape [calls].
    """
    ended = pl.DataFrame({"thread": thread, "end": end}).select(pl.col("end").cum_max().shift(1).over("thread"))
    silent_since = ended["end"].fill_null(NEVER).to_numpy()
    goes_on = np.flatnonzero(start - silent_since >= HANDOVER_NS)
    last = np.searchsorted(start, start[goes_on]) - 1  # the last call that any thread began before
    turns = np.append(True, thread[1:] != thread[:-1])
    first_in_turn = np.maximum.accumulate(np.where(turns, np.arange(thread.size), 0))
    own = (last >= 0) & (thread[last] == thread[goes_on])
    last[own] = first_in_turn[last[own]] - 1  # that another one did
    holds = (last >= 0) & (start[last] >= silent_since[goes_on])
    for row, source in zip(goes_on[holds].tolist(), last[holds].tolist(), strict=True):
        yield _Handover(int(start[row]), int(thread[row]), int(thread[source]))


def _by_thread(thread: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each thread and where it stands in the array, shape [its calls]."""
    order = np.argsort(thread, kind="stable")
    numbers, first = np.unique(thread[order], return_index=True)
    yield from zip(numbers.tolist(), np.split(order, first[1:]), strict=False)  # of nothing, one part that is empty


def _waits(linked: Linked, device: Device) -> list[Wait]:
    """Find the calls that wait: synchronisations, and copies that returned only once their own was done."""
    calls = linked.trace.launches.with_row_index("row").filter(
        pl.col("name").cast(pl.String).str.contains(WAITS.pattern)
    )
    known = np.flatnonzero(device.launch >= 0)
    launched = np.full(device.launch.shape, NEVER)
    launched[known] = linked.trace.launches["start_ns"].to_numpy()[device.launch[known]]
    last_of_launch = np.full(linked.trace.launches.height, -1)
    np.maximum.at(last_of_launch, device.launch[known], known)
    streams = [_Done.of(device, launched, rows) for rows in device.rows_by_stream()]
    waits = []
    for row, thread, start, duration, name in calls.select(
        "row", "thread", "start_ns", "duration_ns", pl.col("name").cast(pl.String)
    ).iter_rows():
        end = start + duration
        if "Memcpy" in name:
            copy = int(last_of_launch[row])
            targets = [copy] if copy >= 0 and start < device.end[copy] <= end else []
        else:
            targets = [last for done in streams if (last := done.last(start, end)) is not None]
        if targets and end - (done_at := max(start, *device.end[targets].tolist())) <= RETURN_DELAY_NS:
            waits.append(Wait(row, thread, start, end, tuple(targets), int(end - done_at), 0))
    return waits


@dataclass(frozen=True, slots=True)
class _Done:
    """The work of one stream, in order of its launches, of which a call can wait for what was launched before it."""

    rows: Ints
    launched: Ints
    """Sorted."""
    end: Ints
    """The latest end up to each row."""

    @classmethod
    def of(cls, device: Device, launched: Ints, rows: Ints) -> _Done:
        rows = rows[np.argsort(launched[rows], kind="stable")]
        return cls(rows, launched[rows], np.maximum.accumulate(device.end[rows]))

    def last(self, start: int, end: int) -> int | None:
        """Return the last row launched before a call began that had ended at its return; None: there is none."""
        position = min(np.searchsorted(self.launched, start), np.searchsorted(self.end, end, side="right")) - 1
        return int(self.rows[position]) if position >= 0 else None
