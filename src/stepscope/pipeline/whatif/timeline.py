"""The steps replayed with causes removed, host and device on one timeline.

The device is one sequence of work in order of start, over all streams. Between two pieces of work lies a gap, and a gap
has a reason: the host launched the next piece too late, or the device itself took the time. Work that overlaps earlier
work lengthens the sequence only by what it runs on alone. Taking work out takes out the time that nothing else
covered. The host's launches stay where they were, except that a call which waits for the device returns when the work
that it waited for is done in the replay, and everything after it on the host moves with it.

With nothing taken out, the replay is the identity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.steps.spans import spans
from stepscope.pipeline.whatif.changes import Change
from stepscope.pipeline.whatif.host import NEVER, Wait, find_waits, issued
from stepscope.pipeline.whatif.replayed import Replayed
from stepscope.trace import intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

QUEUE_DELAY_NS = 10_000
"""Work that follows a gap and starts within this time of its launch call's end was held up by the host."""
OWN_GAP_NS = 1_000
"""The device's own gap between two kernels where the trace shows none to learn it from."""
GRAPH_GAP_NS = 500
"""The device's own gap between two kernels of a graph; the median in graph replays on one H200 is 416 ns."""
MOST_ERROR = 0.02
"""Steps that the replay without a change does not reproduce within this are not predicted."""


@dataclass(frozen=True, slots=True)
class _Schedule:
    """The kept work after a change, in the device's order."""

    rows: Ints
    start: Ints
    end: Ints
    has_gap: Bools
    is_late: Bools


class Timeline:
    """Host and device of one trace, ready to be replayed with changes."""

    def __init__(self, linked: Linked, steps: Steps) -> None:
        kernels = linked.kernels
        self._steps = steps
        self._start = kernels["start_ns"].to_numpy()
        self._end = self._start + kernels["duration_ns"].to_numpy()
        self._gap = self._start - _frontier_before(self._end, self._start)
        self._beside = (self._gap < 0) & _other_stream(self._end, *_queues(kernels))
        self._launch = kernels["launch"].cast(pl.Int64).fill_null(-1).to_numpy()
        self._issued = issued(linked, self._launch, self._end)
        all_rows = np.arange(self._start.size)
        self._late = (self._gap > 0) & (self._start - self._issued < QUEUE_DELAY_NS) & self._leads(all_rows)
        own = self._gap[(self._gap > 0) & ~self._late]
        self._own_gap = int(np.median(own)) if own.size else OWN_GAP_NS
        reaction = self._start[self._late] - self._issued[self._late]
        self._reaction = int(np.median(reaction)) if reaction.size else 0
        self._waits = find_waits(linked, self._end, self._launch)

    def measured(self, indices: Sequence[int]) -> Replayed:
        """Return the given steps as they were recorded."""
        rows = np.arange(self._start.size)
        return self._replayed(_Schedule(rows, self._start, self._end, self._gap > 0, self._late), indices)

    def replay(self, indices: Sequence[int], change: Change | None = None) -> Replayed:
        """Return the given steps as they would run after a change; without one, as the model says that they ran."""
        return self._replayed(self._run(change or Change(np.zeros(self._start.shape, dtype=np.bool_))), indices)

    def error(self, indices: Sequence[int]) -> float:
        """Return by how much the replay without a change misses the median step or GPU span, as a fraction of it."""
        measured, same = self.measured(indices), self.replay(indices)
        pairs = ((measured.duration_us, same.duration_us), (measured.gpu_span_us, same.gpu_span_us))
        medians = [(float(np.median(was)), float(np.median(now))) for was, now in pairs]
        return max(abs(now - was) / was if was else 0.0 for was, now in medians)

    def _replayed(self, run: _Schedule, indices: Sequence[int]) -> Replayed:
        in_step = self._steps.step_of_kernel[run.rows] >= 0
        step = self._steps.step_of_kernel[run.rows][in_step]
        start, end = run.start[in_step], run.end[in_step]
        count = len(self._steps.steps)
        of_steps = spans(step, start, end, count)
        of = np.asarray(indices, dtype=np.int64)
        running = of[of_steps.ran[of]]
        if not running.size:  # nothing is left of the steps
            nothing = np.zeros(1)
            return Replayed(nothing, nothing, nothing, gaps=0, late_gaps=0)
        followed = running[of_steps.followed[running]]
        span = of_steps.gpu_span(running)
        timed, duration = (followed, of_steps.duration(followed)) if followed.size else (running, span)
        inside = np.isin(step, running)
        return Replayed(
            duration_us=duration / 1e3,
            gpu_span_us=span / 1e3,
            busy_us=intervals.covered_by_group(start, end, step, count)[timed] / 1e3,
            gaps=int(run.has_gap[in_step][inside].sum()),
            late_gaps=int(run.is_late[in_step][inside].sum()),
        )

    def _leads(self, rows: Ints) -> Bools:
        """Tell which rows the host can hold up: the first of each launch, unless it runs beside another stream's work.

        A graph's other kernels follow its first. Work beside other work may come when it likes: holding the sequence up
        for it would let a small copy on a side stream delay a whole step.
        """
        return self._first_of_launch(rows) & ~self._beside[rows]

    def _first_of_launch(self, rows: Ints) -> Bools:
        launch = self._launch[rows]
        first = np.zeros(rows.shape, dtype=np.bool_)
        first[np.unique(launch, return_index=True)[1]] = True
        return first & (launch >= 0)

    def _run(self, change: Change) -> _Schedule:
        rows = np.flatnonzero(~change.removed)
        duration = change.durations(self._end - self._start)
        gap = self._own_gaps(change, rows, duration)
        ready = np.full(rows.shape, NEVER)
        if not change.launches_free:
            first = self._first_of_launch(rows)
            late = self._late[rows]
            on_time = np.minimum(self._issued[rows] + self._reaction, self._start[rows])
            handed_over = np.where(late, self._start[rows], on_time) - change.host_freed_before(self._issued[rows])
            ready[first] = handed_over[first]
        return self._schedule(rows, gap, duration[rows], ready, self._waits_after(change))

    def _waits_after(self, change: Change) -> list[Wait]:
        """Return the waits that are left, on the host's clock without the time that is gone."""
        at = np.array([(wait.start, wait.end) for wait in self._waits], dtype=np.int64).reshape(-1, 2)
        left = at - change.host_freed_before(at)
        return [
            replace(wait, start=start, end=end) for wait, (start, end) in zip(self._waits, left.tolist(), strict=True)
        ]

    def _own_gaps(self, change: Change, rows: Ints, duration: Ints) -> Ints:
        """Return the gap before each kept row that the device itself needs; negative where it overlaps earlier work."""
        kept = ~change.removed
        only_removed = intervals.difference(
            self._start[change.removed], self._end[change.removed], self._start[kept], self._end[kept]
        )
        start = self._start[rows] - intervals.time_covered_before(self._start[rows], *only_removed)
        end = self._end[rows] - intervals.time_covered_before(self._end[rows], *only_removed)
        overlap = np.minimum(start - _frontier_before(end, start), self._own_gap)
        if change.factor is not None:  # what runs beside other work begins as long after that began as it did
            beside = np.minimum(start - _frontier_before(start + duration[rows], start), self._own_gap)
            overlap = np.where(self._beside[rows], beside, overlap)
        measured = self._gap[rows]
        if change.launches_free:
            own = np.minimum(measured, min(self._own_gap, GRAPH_GAP_NS))
        else:
            own = np.where(self._late[rows], np.minimum(measured, self._own_gap), measured)
        return np.where(measured > 0, own, overlap)

    def _schedule(self, rows: Ints, gap: Ints, duration: Ints, ready: Ints, waits: Sequence[Wait]) -> _Schedule:
        """Place the rows one after another, from one waiting host call to the next.

        With F the end of all work so far, a row starts at max(F + gap, ready), so F grows by a step of the
        (max, +) algebra, which a cumulative maximum computes for many rows at once. A row beside other work starts
        no earlier than its launch either, but F does not wait for that.
        """
        start, can_start = np.empty_like(duration), np.empty_like(duration)
        frontier_before = np.empty_like(duration)
        growth = np.maximum(gap + duration, 0)
        frontier = int(self._start[0]) if rows.size else 0
        beside = self._beside[rows]
        waits_before = np.searchsorted([wait.end for wait in self._waits], self._issued[rows], side="right")
        earlier = np.zeros(len(waits) + 1, dtype=np.int64)  # by how much the host is ahead after so many waits
        done = 0
        for number, wait in enumerate([*waits, None]):
            stop = rows.size if wait is None else int(np.searchsorted(rows, wait.target, side="right"))
            if stop > done:
                part = slice(done, stop)
                ahead = earlier[np.minimum(waits_before[part], number)]
                can_start[part] = np.where(ready[part] == NEVER, NEVER, ready[part] - ahead)
                total = np.cumsum(growth[part])
                holds_up = np.where(beside[part], NEVER, can_start[part])
                reach = np.maximum.accumulate(np.maximum(holds_up + duration[part] - total, frontier))
                frontier_before[part] = np.concatenate(([frontier], (reach + total)[:-1]))
                start[part] = np.maximum(frontier_before[part] + gap[part], can_start[part])
                frontier = int(reach[-1] + total[-1])
                done = stop
            if wait is not None:
                earlier[number + 1] = earlier[number]
                target = self._kept_target(rows, done - 1, wait.target)
                if target >= 0 and wait.end > wait.start:  # a wait that is gone returns at once
                    target_end = int(start[target] + duration[target])
                    returned = max(wait.start - int(earlier[number]), target_end + wait.delay)
                    earlier[number + 1] = wait.end - returned
        has_gap = start > frontier_before
        return _Schedule(rows, start, start + duration, has_gap, has_gap & (start == can_start))

    def _kept_target(self, rows: Ints, position: int, target: int) -> int:
        """Return the position of the work that a wait is for: where that is gone, of the last that was done by then.

        What began before the target and ended after it is on another stream, and was not waited for.
        """
        while position >= 0 and self._end[rows[position]] > self._end[target]:
            position -= 1
        return position


def _frontier_before(end: Ints, start: Ints) -> Ints:
    """Return, for work in order of start, when all work before it is done; for the first, its own start."""
    return np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))


def _queues(kernels: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return device and stream of each row: a stream's number says nothing without its device."""
    return kernels["device"].fill_null(0).to_numpy(), kernels["stream"].fill_null(0).to_numpy()


def _other_stream(end: Ints, device: Ints, stream: Ints) -> Bools:
    """Tell which rows are on another stream than the work before them that ends last."""
    latest = np.maximum.accumulate(end)
    is_latest = np.concatenate(([True], end[1:] > latest[:-1]))
    holder = np.maximum.accumulate(np.where(is_latest, np.arange(end.size), 0))
    before = holder[:-1]
    return np.concatenate(([False], (stream[1:] != stream[before]) | (device[1:] != device[before])))
