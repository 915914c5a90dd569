"""What holds of every replay: the identity without a change, and never longer with less work. All times are µs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.kineto import LATENCY_US, Kineto
from tests.replays import host_without, replayed, scaled

STEP = "step[DECODE bs=1]"


@st.composite
def timelines(draw: st.DrawFn) -> tuple[Kineto, list[list[tuple[float, float]]]]:
    """Draw a trace with streams, graphs and waits, and the (start, end) of the work of each of its steps."""
    trace = Kineto()
    small = st.integers(0, 60)
    at = 0.0
    steps = []
    done = 0.0
    for _ in range(draw(st.integers(1, 4))):
        begin = at
        work: list[tuple[float, float]] = []
        for _ in range(draw(st.integers(1, 6))):
            kind = draw(st.sampled_from(["kernel", "side", "graph", "sync"]))
            if kind == "sync" and work:
                trace.launch(at, max(done - at, 0) + draw(st.integers(1, 9)), name="cudaStreamSynchronize")
                at = max(at, done) + 10
            elif kind == "graph":
                correlation = trace.launch(at, 8, name="cudaGraphLaunch")
                start = max(at + 10, done)
                for gap in draw(st.lists(small, min_size=1, max_size=4)):
                    duration = draw(small) + 1
                    trace.kernel("graphed", start + gap, duration, correlation=correlation)
                    work.append((start + gap, start + gap + duration))
                    start += gap + duration
                done = max(done, start)
            else:
                duration = draw(small) + 1
                end = trace.call("k", at=at, duration=duration, stream=20 if kind == "side" else 7)
                work.append((end - duration, end))
                done = max(done, end)
            at += 5 + draw(small)
        if not work:
            end = trace.call("k", at=at, duration=5)
            work.append((end - 5, end))
            done = max(done, end)
            at += 5
        trace.annotation(STEP, begin, at - begin)
        steps.append(work)
        at += draw(small) + 1
    return trace, steps


@settings(max_examples=60, deadline=None)
@given(timelines())
def test_nothing_taken_out_changes_nothing(drawn: tuple[Kineto, list[list[tuple[float, float]]]]) -> None:
    trace, steps = drawn
    firsts = [min(start for start, _ in work) for work in steps]
    assume(firsts == sorted(firsts))  # a side stream may run ahead of the step before
    spans = [max(end for _, end in work) - first for work, first in zip(steps, firsts, strict=True)]
    same = replayed(trace)
    assert same.gpu_span_us.tolist() == pytest.approx(spans)
    assert same.duration_us.tolist() == pytest.approx(np.diff(firsts).tolist() if len(firsts) > 1 else spans)
    again = replayed(trace, ["no kernel has this name"])
    assert again.gpu_span_us.tolist() == same.gpu_span_us.tolist()
    assert again.duration_us.tolist() == same.duration_us.tolist()
    assert (again.gaps, again.late_gaps) == (same.gaps, same.late_gaps)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 80), st.integers(5, 80), st.booleans()), min_size=1, max_size=6),
        min_size=2,
        max_size=4,
    )
)
def test_taking_work_out_never_lengthens_the_steps(steps: Sequence[Sequence[tuple[int, int, bool]]]) -> None:
    trace = Kineto()
    at = 0.0
    for work in steps:
        begin = at
        trace.call("kept", at=at, duration=10)
        at += 10
        for duration, pause, removed in work:
            trace.call("removed" if removed else "kept", at=at, duration=duration)
            at += pause
        trace.annotation(STEP, begin, at - begin)
    before, after = replayed(trace), replayed(trace, ["removed"])
    assert after.duration_us.sum() <= before.duration_us.sum() + 1e-6
    assert after.busy_us.sum() <= before.busy_us.sum() + 1e-6
    assert after.gpu_span_us[0] <= before.gpu_span_us[0] + 1e-6


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(20, 90), st.booleans()), min_size=1, max_size=12))
def test_a_deep_queue_gets_shorter_by_exactly_what_is_taken_out(work: Sequence[tuple[int, bool]]) -> None:
    trace = Kineto()
    trace.annotation(STEP, 0, 1000)
    at = 0.0
    for duration, removed in [(100, False), *work]:
        trace.call("removed" if removed else "kept", at=at, duration=duration)
        at += 5  # every launch is far ahead of its kernel
    kept = 100 + sum(duration for duration, removed in work if not removed)
    assert replayed(trace, ["removed"]).gpu_span_us.tolist() == pytest.approx([kept])
    assert LATENCY_US < 100


Timed = Sequence[Sequence[tuple[int, int, int, int]]]
TIMED: st.SearchStrategy[Timed] = st.lists(
    st.lists(
        st.tuples(st.integers(1, 80), st.integers(5, 80), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=6
    ),
    min_size=2,
    max_size=4,
)
"""Steps of work: duration, the host's pause after the launch, kind, and whether the host waits for it (0)."""


def timed(steps: Timed) -> Kineto:
    """Return steps on one stream, with waits; the kernels are named by their kind."""
    trace = Kineto()
    at = 0.0
    for work in steps:
        begin = at
        trace.call("first", at=at, duration=10)
        at += 10
        for duration, pause, kind, wait in work:
            done = trace.call(f"kind{kind}", at=at, duration=duration)
            at += 5
            if not wait and done > at:
                trace.launch(at, done + 3 - at, name="cudaStreamSynchronize")
                at = done + 4
            at += pause
        trace.annotation(STEP, begin, at - begin)
    return trace


@settings(max_examples=80, deadline=None)
@given(TIMED, st.floats(0, 1), st.floats(1, 4))
def test_less_work_never_lengthens_the_steps_and_more_never_shortens_them(
    steps: Timed, less: float, more: float
) -> None:
    trace = timed(steps)
    measured = replayed(trace).duration_us.sum()
    removed = replayed(trace, ["kind0"]).duration_us.sum()
    shorter, longer = (scaled(trace, {"kind0": factor}).duration_us.sum() for factor in (less, more))
    slack = 0.001 * trace.document()["traceEvents"].__len__()  # durations are whole ns
    assert removed <= measured + slack
    assert shorter <= measured + slack
    assert longer >= measured - slack
    assert host_without(trace, "cudaStreamSynchronize").duration_us.sum() <= measured + slack


@settings(max_examples=40, deadline=None)
@given(TIMED)
def test_a_factor_of_one_and_no_time_gone_change_nothing(steps: Timed) -> None:
    trace = timed(steps)
    same = scaled(trace, {"kind0": 1.0})
    assert same.duration_us.tolist() == replayed(trace).duration_us.tolist()
    assert same.gpu_span_us.tolist() == replayed(trace).gpu_span_us.tolist()
    assert host_without(trace, "no such call").duration_us.tolist() == same.duration_us.tolist()
