"""The steps replayed with causes removed, host and device on one timeline.

GPU work starts when the last of what it waits for is done: the work before it on its stream, work of other streams
(`device.py` tells which), and the call that launched it. What it waited for longest in the recording is the reason for
the time between, which stays as it was; from the rest it keeps the device's own small gap, or what the recording shows
if that is less. The host's launches stay where they were, except that a call which waits for the device returns when
the work that it waited for is done in the replay, and everything after it on its thread moves with it (`host.py`).

All of this is a network of "not before", whose times are sums and maxima: with nothing taken out the replay is the
identity, work taken out never makes anything later, and work added never earlier. Work that is removed stays in it as
work of no time, without a launch, so that what waited for it waits for what it had waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.steps.spans import spans
from stepscope.pipeline.whatif.changes import Change
from stepscope.pipeline.whatif.device import Device
from stepscope.pipeline.whatif.host import NEVER, Host
from stepscope.pipeline.whatif.network import Work, starts
from stepscope.pipeline.whatif.replayed import Replayed
from stepscope.trace import intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps
    from stepscope.pipeline.whatif.device import Edges
    from stepscope.pipeline.whatif.host import Wait
    from stepscope.pipeline.whatif.joins import Join

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

QUEUE_DELAY_NS = 10_000
"""Work that follows a longer gap than the device's own, within this time of its launch call's end, waited for that."""
OWN_GAP_NS = 1_000
"""The device's own gap between two kernels where the trace shows none to learn it from."""
GRAPH_GAP_NS = 500
"""The device's own gap between two kernels of a graph; the median in graph replays on one H200 is 416 ns."""
MOST_ERROR = 0.02
"""Steps that the replay without a change does not reproduce within this are not predicted."""


@dataclass(frozen=True, slots=True)
class _Schedule:
    """The kept work after a change, in order of start."""

    rows: Ints
    start: Ints
    end: Ints
    has_gap: Bools
    """Whether the device did nothing before it."""
    is_late: Bools
    """Whether its launch is the reason."""

    @classmethod
    def of(cls, rows: Ints, start: Ints, end: Ints, held_up: Bools) -> _Schedule:
        """Put work in order; `held_up` tells what started when its launch let it."""
        order = np.argsort(start, kind="stable")
        rows, start, end, held_up = rows[order], start[order], end[order], held_up[order]
        has_gap = start > np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
        return cls(rows, start, end, has_gap, has_gap & held_up)


@dataclass(frozen=True, slots=True)
class _Order:
    """What work waits for on the device, and the time that it keeps from it."""

    edges: Edges
    stream_gap: Ints
    """Shape [rows]: from the end of the work before on the stream; negative where that had not ended."""
    edge_gap: Ints
    """Shape [edges]: from the end of work of another stream."""


class Timeline:
    """Host and device of one trace, ready to be replayed with changes."""

    def __init__(self, linked: Linked, steps: Steps) -> None:
        self._steps = steps
        launch = linked.kernels["launch"].cast(pl.Int64).fill_null(-1).to_numpy()
        self._device = device = Device(linked, launch)
        self._host = Host(linked, device)
        self._first = _first_of_launch(launch)
        self._follows = self._host.wait_before(self._host.issuer, self._host.issued)
        edges = device.edges()
        done, delay = self._done_before(edges), device.start - self._host.issued
        gap = device.start - done
        free = done <= self._host.issued  # before its launch had ended: that is why it did not start earlier
        queued = (gap > 0) & (done != NEVER) & ~(self._first & (free | (delay < QUEUE_DELAY_NS)))
        self._own_gap = int(np.median(gap[queued])) if queued.any() else OWN_GAP_NS
        self._late = self._first & (gap > 0) & (free | ((delay < QUEUE_DELAY_NS) & (gap > self._own_gap)))
        quick = delay[self._late & (delay < QUEUE_DELAY_NS)]
        self._reaction = int(np.median(quick)) if quick.size else 0
        self._pinned = (done == NEVER) & ~self._first
        self._order = self._order_of(edges, self._late, self._own_gap)

    @cached_property
    def _order_of_graph(self) -> _Order:
        """What waits for what if the host launches all ahead: the recorded order is kept, and nothing is late."""
        everything = np.ones(self._late.shape, dtype=np.bool_)
        return self._order_of(self._device.as_recorded(), everything, min(self._own_gap, GRAPH_GAP_NS))

    @property
    def waits(self) -> Sequence[Wait]:
        """The calls of the host that returned once GPU work was done, in order of their ends."""
        return self._host.waits

    @property
    def joins(self) -> Sequence[Join]:
        """Where threads that launch waited for others, which launch nothing."""
        return self._host.joins

    def measured(self, indices: Sequence[int]) -> Replayed:
        """Return the given steps as they were recorded."""
        device = self._device
        return self._replayed(_Schedule.of(np.arange(device.start.size), device.start, device.end, self._late), indices)

    def replay(self, indices: Sequence[int], change: Change | None = None) -> Replayed:
        """Return the given steps as they would run after a change; without one, as the model says that they ran."""
        return self._replayed(self._run(change or Change(np.zeros(self._late.shape, dtype=np.bool_))), indices)

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

    def _done_before(self, edges: Edges) -> Ints:
        """Return when all that each row waits for on the device had ended in the recording; `NEVER`: it waits for none.

        A row that began before the one before it on its stream had ended waited for none of it to end.
        """
        device = self._device
        done = np.where(device.previous >= 0, device.end[device.previous], NEVER)
        np.maximum.at(done, edges.after, device.end[edges.before])
        return done

    def _order_of(self, edges: Edges, late: Bools, own_gap: int) -> _Order:
        device, done = self._device, self._done_before(edges)
        on_stream = device.start - device.end[device.previous]
        on_edge = device.start[edges.after] - device.end[edges.before]
        reason = ~late & (device.end[device.previous] == done)
        reason_of_edge = ~late[edges.after] & (device.end[edges.before] == done[edges.after])
        return _Order(
            edges,
            np.where(device.previous < 0, 0, np.where(reason, on_stream, np.minimum(on_stream, own_gap))),
            np.where(reason_of_edge, on_edge, np.minimum(on_edge, own_gap)),
        )

    def _run(self, change: Change) -> _Schedule:
        device, kept = self._device, ~change.removed
        order = self._order_of_graph if change.launches_free else self._order
        duration = change.durations(device.end - device.start)
        ready, waits = self._launched(change)
        work = Work(
            duration=duration,
            advance=self._advance(order.stream_gap, duration, kept),
            ready=ready,
            follows=self._follows,
            edges=order.edges,
            edge_gap=np.where(kept[order.edges.after], order.edge_gap, 0),
            waits=waits,
        )
        start, let = starts(device, work)
        return _Schedule.of(
            np.flatnonzero(kept), start[kept], (start + duration)[kept], ((start == let) & self._first)[kept]
        )

    def _launched(self, change: Change) -> tuple[Ints, Sequence[Wait]]:
        """Return when the launches let work start, and the waits that are left, without the time that is gone."""
        device, host = self._device, self._host
        ready = np.where(self._pinned, device.start, NEVER)
        if change.launches_free:
            done = self._done_before(self._order_of_graph.edges)
            return np.where(done == NEVER, device.start, NEVER), ()
        needed = np.zeros(self._late.shape, dtype=np.bool_)
        needed[np.isin(device.launch, device.launch[~change.removed & (device.launch >= 0)])] = True
        on_time = np.where(self._late, device.start, np.minimum(host.issued + self._reaction, device.start))
        on_time = on_time - host.freed_before(change.host_gone, host.issuer, host.issued)
        return np.where(self._first & needed, on_time, ready), host.left(change.host_gone)

    def _advance(self, gap: Ints, duration: Ints, kept: Bools) -> Ints:
        """Return from the start of the work before on the stream to a row's earliest start.

        Where work began before the one before it had ended, it begins at the same share of that.
        """
        device = self._device
        before = device.previous
        recorded = device.end - device.start
        shortened = (device.start - device.start[before]) * duration[before] / np.maximum(recorded[before], 1)
        apart = duration[before] + np.where(kept, gap, 0)
        return np.where(before < 0, 0, np.where(gap < 0, np.rint(shortened).astype(np.int64), apart))


def _first_of_launch(launch: Ints) -> Bools:
    """Tell which rows the host hands over: the first of each launch. A graph's other kernels follow its first."""
    first = np.zeros(launch.shape, dtype=np.bool_)
    first[np.unique(launch, return_index=True)[1]] = True
    return first & (launch >= 0)
