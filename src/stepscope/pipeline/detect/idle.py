"""When the GPU did nothing, and in which step: what the rules about the host measure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.pipeline.steps.spans import Spans, spans
from stepscope.trace import intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.detect.rule import Case

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Idle:
    """The gaps in a trace's GPU work, of all streams together, and the steps that they lie in; times in ns."""

    start: Ints
    """Shape [gaps]."""
    end: Ints
    spans: Spans

    @classmethod
    def of(cls, case: Case) -> Idle:
        """Find the gaps of a trace."""
        kernels, step = case.linked.kernels, case.steps.step_of_kernel
        start = kernels["start_ns"].to_numpy()
        end = start + kernels["duration_ns"].to_numpy()
        mine = step >= 0
        return cls(*intervals.gaps(start, end), spans(step[mine], start[mine], end[mine], len(case.steps.steps)))

    def between(self, start: Ints, end: Ints) -> Ints:
        """Return how long the GPU did nothing between moments, shape [n] both; 0 where the second is not later."""
        before, until = (intervals.time_covered_before(at, self.start, self.end) for at in (start, end))
        idle: Ints = np.maximum(until - before, 0)
        return idle

    def without(self, start: Ints, end: Ints) -> Idle:
        """Return the gaps less some intervals, shape [n] both."""
        return Idle(*intervals.difference(self.start, self.end, start, end), self.spans)

    def gap_at(self, at: Ints) -> Ints:
        """Return the gap that each moment lies in or begins; -1: the GPU was at work."""
        found = np.searchsorted(self.start, at, side="right") - 1
        if not self.start.size:
            return np.full(at.shape, -1)
        return np.where((found >= 0) & (at < self.end[found]), found, -1)

    def step_at(self, at: Ints) -> Ints:
        """Return the step whose duration holds each moment: the last to have begun on the GPU; -1: none had."""
        ran = np.flatnonzero(self.spans.ran)
        ran = ran[np.argsort(self.spans.begin[ran], kind="stable")]
        if not ran.size:
            return np.full(at.shape, -1)
        place = np.searchsorted(self.spans.begin[ran], at, side="right") - 1
        return np.where(place >= 0, ran[place], -1)

    def timed(self, indices: Sequence[int]) -> list[int]:
        """Return those of some steps that have a duration; all, where none has."""
        return [index for index in indices if self.spans.followed[index]] or list(indices)


def per_step(step: Ints, value: Ints, indices: Sequence[int]) -> float:
    """Return the median over some steps of each one's sum.

    Args:
        step: shape [n], the step of each value; -1: none.
        value: shape [n].
        indices: the steps.
    """
    total = np.bincount(step[step >= 0], weights=value[step >= 0], minlength=max(indices) + 1)
    return float(np.median(total[list(indices)]))


def idle_at_joins_us(case: Case) -> float:
    """Return the µs of a step for which the GPU was idle while a thread that launches waited for one that computes."""
    joins = case.timeline.joins
    if not joins:
        return 0.0
    idle = Idle.of(case)
    since, at = intervals.union(*np.array([(join.since, join.at) for join in joins]).T)
    return per_step(idle.step_at(since), idle.between(since, at), idle.timed(case.step_indices)) / 1e3
