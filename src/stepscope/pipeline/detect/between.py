"""The time between two steps: when the GPU has done the first one's work and the host does not launch the next yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.link import NONE
from stepscope.pipeline.steps.spans import spans
from stepscope.trace import intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.pipeline.detect.rule import Case
    from stepscope.trace import Trace

    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

LISTENS = (
    r"^<built-in (?:method|function) (?:sleep|poll|select|acquire|wait\w*|recv\w*|accept)\b"
    r"|\b(?:select|selectors|threading|queue|zmq/\S+)\.py\(\d+\): (?:select|wait|get|poll|recv\w*)$"
)
"""Functions in which a program waits for what others send."""


@dataclass(frozen=True, slots=True)
class Between:
    """The time between steps of a phase that follow each other with as many requests; shapes [pairs], times in ns."""

    step: Ints
    """The step before."""
    done: Ints
    """When its last kernel had ended; copies may follow."""
    begin: Ints
    """When the next step's first kernel began."""
    thread: Ints
    """That which launched it."""
    host_start: Ints
    """When the thread had launched the step before; `done`, if it launched none of it."""
    host_end: Ints
    """When it began to launch the next step."""

    @classmethod
    def of(cls, case: Case) -> Between:
        """Find the pairs whose launches are known."""
        kernels, calls = case.linked.kernels, case.linked.trace.launches
        step = case.steps.step_of_kernel
        rows = np.flatnonzero((step >= 0) & (kernels["kind"].cast(pl.String) == "kernel").to_numpy())
        launch = kernels["launch"].cast(pl.Int64).fill_null(NONE).to_numpy()[rows]
        start, step = kernels["start_ns"].to_numpy()[rows], step[rows]
        end = start + kernels["duration_ns"].to_numpy()[rows]
        ran, first = np.unique(step, return_index=True)
        pair = np.flatnonzero(_go_on(case, ran[:-1], ran[1:]) & (launch[first[1:]] != NONE))
        before, first = ran[pair], first[pair + 1]
        done = spans(step, start, end, len(case.steps.steps)).end[before]
        call_start, thread = calls["start_ns"].to_numpy(), calls["thread"].cast(pl.Int64).to_numpy()
        launched = np.full((len(case.steps.steps), len(case.linked.trace.threads) + 1), NONE)
        known = launch != NONE
        by = launch[known]
        np.maximum.at(launched, (step[known], thread[by]), (call_start + calls["duration_ns"].to_numpy())[by])
        on = thread[launch[first]]
        host_start = launched[before, on]
        return cls(
            before, done, start[first], on, np.where(host_start == NONE, done, host_start), call_start[launch[first]]
        )

    def listens(self, trace: Trace) -> Floats:
        """Return the share of the time from `done` to `host_end` in which the thread waits for what others send.

        As its Python functions tell; 0 where none were recorded.
        """
        frames = trace.frames
        return self._covered([frames.filter(frames["name"].cast(pl.String).str.contains(LISTENS))])

    def works(self, trace: Trace) -> Floats:
        """Return the share of that time in which the thread is in ops, calls, or Python that does not listen."""
        python = self._covered([trace.frames]) - self.listens(trace)
        return np.maximum(python, self._covered([trace.ops, trace.launches]))

    def _covered(self, tables: list[pl.DataFrame]) -> Floats:
        """Return the share of each pair's time that spans of its thread cover."""
        share = np.zeros(self.step.shape)
        for thread in np.unique(self.thread).tolist():
            mine = (self.thread == thread) & (self.host_end > self.done)
            low, high = self.done[mine], self.host_end[mine]
            of_thread = [table.filter(pl.col("thread") == thread) for table in tables]
            start = np.concatenate([table["start_ns"].to_numpy() for table in of_thread])
            end = start + np.concatenate([table["duration_ns"].to_numpy() for table in of_thread])
            merged = intervals.union(start, end)
            until, before = (intervals.time_covered_before(at, *merged) for at in (high, low))
            share[mine] = (until - before) / (high - low)
        return share


def _go_on(case: Case, before: Ints, after: Ints) -> Bools:
    """Tell which steps are followed by another of the phase with as many requests, so that none is lacking."""
    steps = case.steps.steps
    return np.array(
        [
            steps[one].phase == steps[other].phase == case.phase and steps[one].batch_size == steps[other].batch_size
            for one, other in zip(before.tolist(), after.tolist(), strict=True)
        ],
        dtype=np.bool_,
    )
