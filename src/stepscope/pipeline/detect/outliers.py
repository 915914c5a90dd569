"""The rare long steps of a phase: what they take beyond the others, and what fills that time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.trace import intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.pipeline.detect.idle import Idle
    from stepscope.pipeline.detect.rule import Case

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Outliers:
    """Steps far longer than the steady ones of their size, and followed by another; shapes [outliers], times in ns."""

    step: Ints
    begin: Ints
    end: Ints
    """When the next step's first GPU work began."""
    excess: Ints
    """What it takes beyond the median of the steady steps."""
    pause: Ints
    """The longest time in it without any call, op, or GPU work.

    After the last GPU work of a step such time counts only if as many requests go on in the next one: else there may
    have been nothing to do.
    """

    @classmethod
    def of(cls, case: Case, idle: Idle) -> Outliers:
        """Find them: those that the steady window left out for their length."""
        spans = idle.spans
        step = np.array(case.steps.windows[case.phase].outliers, dtype=np.int64)
        step = step[spans.followed[step]]
        begin, end = spans.begin[step], spans.next_begin[step]
        excess = end - begin - round(case.measured.step_us * 1e3)
        until = np.where(_go_on(case, idle, step), end, spans.end[step])
        return cls(step, begin, end, excess, _pauses(case, idle, begin, until))

    def covered(self, calls: pl.DataFrame) -> Ints:
        """Return how much of each step some calls of the host cover."""
        start = calls["start_ns"].to_numpy()
        merged = intervals.union(start, start + calls["duration_ns"].to_numpy())
        return intervals.time_covered_before(self.end, *merged) - intervals.time_covered_before(self.begin, *merged)


def _go_on(case: Case, idle: Idle, step: Ints) -> NDArray[np.bool_]:
    """Tell which steps are followed by one of the same phase and as many requests."""
    steps = case.steps.steps
    after = idle.step_at(idle.spans.next_begin[step])
    return np.array(
        [
            (steps[one].phase, steps[one].batch_size) == (steps[other].phase, steps[other].batch_size)
            for one, other in zip(step.tolist(), after.tolist(), strict=True)
        ],
        dtype=np.bool_,
    )


def _pauses(case: Case, idle: Idle, begin: Ints, end: Ints) -> Ints:
    """Return the longest time within each interval in which neither the host nor the GPU does anything recorded."""
    trace = case.linked.trace
    tables = pl.concat([table.select("start_ns", "duration_ns") for table in (trace.ops, trace.launches)])
    start = tables["start_ns"].to_numpy()
    silent = intervals.difference(idle.start, idle.end, start, start + tables["duration_ns"].to_numpy())
    longest = [
        (np.minimum(silent[1], high) - np.maximum(silent[0], low)).max(initial=0)
        for low, high in zip(begin.tolist(), end.tolist(), strict=True)
    ]
    return np.array(longest, dtype=np.int64)
