"""The replay: the identity without a change, and worked by hand with one. All times are µs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.kineto import LATENCY_US, Kineto
from tests.published_cases import waits_over_a_busy_queue
from tests.stages import stepped

from stepscope.pipeline.whatif import Change, Timeline, time_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.whatif import Replayed

STEP = "step[DECODE bs=1]"


def named(linked: Linked, names: Collection[str]) -> NDArray[np.bool_]:
    return linked.kernels["name"].cast(str).is_in(list(names)).to_numpy().copy()


def replayed(trace: Kineto, without: Collection[str] = (), *, launches_free: bool = False) -> Replayed:
    linked, steps = stepped(trace)
    indices = range(len(steps.steps))
    if not without and not launches_free:
        return Timeline(linked, steps).replay(indices)
    return Timeline(linked, steps).replay(indices, Change(named(linked, without), launches_free=launches_free))


def gpu_bound() -> Kineto:
    """Two steps of three kernels of 100, all launched long before they run."""
    trace = Kineto()
    for begin in (0, 50):
        trace.annotation(STEP, begin, 40)
        for index, name in enumerate(("a", "cast", "b")):
            trace.call(name, at=begin + 10 * index, duration=100)
    return trace


def host_bound() -> Kineto:
    """Two steps of three kernels of 10, one launched every 100."""
    trace = Kineto()
    for begin in (0, 300):
        trace.annotation(STEP, begin, 250)
        for index, name in enumerate(("a", "cast", "b")):
            trace.call(name, at=begin + 100 * index, duration=10)
    return trace


def with_sync() -> Kineto:
    """Two steps: the host launches a (10) and a cast (100), waits for both, and only then launches b (10)."""
    trace = Kineto()
    for begin in (0, 150):
        trace.annotation(STEP, begin, 140)
        trace.call("a", at=begin, duration=10)
        done = trace.call("cast", at=begin + 10, duration=100)
        trace.launch(begin + 20, done + 4 - (begin + 20), name="cudaStreamSynchronize")
        trace.call("b", at=done + 14, duration=10)
    return trace


def test_durations_run_from_first_work_to_the_next_steps_first_and_spans_to_the_last_work() -> None:
    measured = replayed(host_bound())
    assert measured.duration_us.tolist() == [300.0]  # the last step has no successor
    assert measured.gpu_span_us.tolist() == [210.0, 210.0]  # 6 to 216
    assert measured.busy_us.tolist() == [30.0]  # of the step that has a duration


def test_the_only_steps_duration_is_its_span() -> None:
    trace = Kineto()
    trace.annotation(STEP, 0, 100)
    trace.call("a", at=0, duration=10)
    trace.call("b", at=50, duration=10)
    assert replayed(trace).duration_us.tolist() == replayed(trace).gpu_span_us.tolist() == [60.0]


def test_idle_time_is_the_duration_without_the_busy_time() -> None:
    measured = replayed(host_bound())
    assert (measured.step_us, measured.idle_us) == (300.0, 270.0)
    assert measured.idle_share == pytest.approx(0.9)


def test_work_on_two_streams_at_once_is_busy_once() -> None:
    trace = Kineto()
    trace.annotation(STEP, 0, 100)
    trace.call("a", at=0, duration=100, stream=7)
    trace.call("b", at=40, duration=100, stream=8)
    assert replayed(trace).busy_us.tolist() == [140.0]  # 6 to 146


def test_a_gpu_bound_step_is_shorter_by_the_kernel() -> None:
    assert replayed(gpu_bound()).step_us == 300.0
    without = replayed(gpu_bound(), ["cast"])
    assert without.step_us == 200.0
    assert without.gpu_span_us.tolist() == [200.0, 200.0]


def test_a_host_bound_step_gains_nothing() -> None:
    assert replayed(host_bound(), ["cast"]).step_us == 300.0


def test_free_launches_leave_the_kernels_half_a_microsecond_apart() -> None:
    assert replayed(host_bound(), launches_free=True).step_us == pytest.approx(3 * 10.5)
    assert replayed(gpu_bound(), launches_free=True).step_us == 300.0


def test_both_together_gain_what_neither_gains_alone() -> None:
    assert replayed(host_bound(), ["cast"], launches_free=True).step_us == pytest.approx(2 * 10.5)


def test_gaps_after_a_launch_are_late_and_gaps_within_a_graph_are_not() -> None:
    measured = replayed(host_bound())
    assert (measured.gaps, measured.late_gaps) == (5, 5)
    trace = Kineto()
    trace.annotation(STEP, 0, 100)
    launch = trace.launch(0, 20, name="cudaGraphLaunch")
    for start in (30, 45, 60):
        trace.kernel("k", start, 10, correlation=launch)
    assert (replayed(trace).gaps, replayed(trace).late_gaps) == (2, 0)


def test_a_host_that_waited_for_the_removed_work_goes_on_earlier() -> None:
    assert replayed(with_sync()).step_us == 150.0
    without = replayed(with_sync(), ["cast"])
    # a ends at 16, so the wait that began at 20 returns at once: everything after it moves up by 100
    assert without.step_us == 50.0
    assert without.gpu_span_us.tolist() == [40.0, 40.0]  # a at 6, b from 36 to 46


def test_a_wait_for_other_work_keeps_its_delay() -> None:
    trace = Kineto()
    for begin in (0, 200):
        trace.annotation(STEP, begin, 190)
        trace.call("a", at=begin, duration=50)
        done = trace.call("cast", at=begin + 10, duration=100)
        trace.launch(begin + 20, done + 4 - (begin + 20), name="cudaStreamSynchronize")
        trace.call("b", at=done + 14, duration=10)
    # a ends at 56, so the wait returns at 60 instead of 160: b and the next step come 100 earlier
    assert replayed(trace, ["cast"]).step_us == 100.0


def test_a_small_copy_on_a_side_stream_does_not_hold_up_the_step() -> None:
    trace = Kineto()
    for begin in (0, 450):
        trace.annotation(STEP, begin, 440)
        for index, (name, us) in enumerate((("a", 20), ("cast", 500), ("b", 100), ("c", 1000))):
            trace.call(name, at=begin + 5 * index, duration=us)
    copy = trace.launch(400, name="cudaMemcpyAsync")
    trace.memcpy(410, 2, size=64, correlation=copy, stream=20)
    trace.launch(405, 1, name="cudaEventRecord")  # calls on events are recorded, and none makes b wait
    assert replayed(trace).step_us == 1620
    # without the cast b follows a at once, though the copy, which ran before b, is launched only at 400
    assert replayed(trace, ["cast"]).step_us == pytest.approx(1120, abs=4)


def test_a_copy_on_a_side_stream_runs_no_earlier_than_it_is_launched() -> None:
    trace = Kineto()
    for begin in (0, 1000, 2000):
        trace.annotation(STEP, begin, 900)
        trace.call("cast", at=begin, duration=500)
        trace.call("b", at=begin + 10, duration=100)
        copy = trace.launch(begin + 400, name="cudaMemcpyAsync")
        trace.memcpy(begin + 410, 2, size=64, correlation=copy, stream=20)
        trace.launch(begin + 405, 1, name="cudaEventRecord")
    without = replayed(trace, ["cast"])
    assert without.duration_us.tolist() == [1000.0, 1000.0]
    # b starts when its launch lets it, 6 after 10; the copy ends as it did at 412, or as much earlier as it could start
    assert without.gpu_span_us.tolist() == pytest.approx([396.0] * 3, abs=5)


def test_work_that_another_stream_covers_gains_nothing_when_removed() -> None:
    trace = Kineto()
    for begin in (0, 500):
        trace.annotation(STEP, begin, 100)
        trace.call("long", at=begin, duration=400, stream=7)
        trace.call("cast", at=begin + 10, duration=200, stream=8)
    assert replayed(trace, ["cast"]).gpu_span_us.tolist() == replayed(trace).gpu_span_us.tolist() == [400.0, 400.0]


def test_two_changes_together_remove_what_either_removes() -> None:
    first = Change(np.array([True, False, False]))
    second = Change(np.array([False, True, False]), launches_free=True)
    both = first | second
    assert both.removed.tolist() == [True, True, False]
    assert both.launches_free
    assert not (first | first).launches_free


def scaled(trace: Kineto, factors: Mapping[str, float]) -> Replayed:
    linked, steps = stepped(trace)
    names = linked.kernels["name"].cast(str).to_list()
    change = Change(np.zeros(len(names), dtype=np.bool_), factor=np.array([factors.get(name, 1.0) for name in names]))
    return Timeline(linked, steps).replay(range(len(steps.steps)), change)


def test_a_kernel_of_half_the_time_shortens_a_gpu_bound_step_by_the_other_half() -> None:
    assert scaled(gpu_bound(), {"cast": 0.5}).step_us == 250.0
    assert scaled(gpu_bound(), {"cast": 2.0}).step_us == 400.0
    assert scaled(gpu_bound(), {"cast": 0.0}).step_us == 200.0


def test_a_slower_kernel_fills_a_host_bound_steps_gap_before_it_lengthens_the_step() -> None:
    assert scaled(host_bound(), {"cast": 10.0}).step_us == 300.0  # 100 after the launch, the next comes
    # 150 of cast begin at 106: b ends its 10 at 266, before the next step's launch at 300
    assert scaled(host_bound(), {"cast": 15.0}).step_us == 300.0
    assert scaled(host_bound(), {"cast": 25.0}).step_us > 300.0


def test_a_slower_kernel_holds_the_host_up_that_waits_for_it() -> None:
    # a cast of 200 instead of 100: the wait returns 100 later, and so does all that follows
    assert scaled(with_sync(), {"cast": 2.0}).step_us == 250.0


def test_a_kernel_beside_a_shorter_one_begins_as_long_after_it_and_ends_alone() -> None:
    trace = Kineto()
    for begin in (0, 500):
        trace.annotation(STEP, begin, 100)
        trace.call("long", at=begin, duration=400, stream=7)
        trace.call("side", at=begin + 10, duration=200, stream=8)
    # side runs from 10 to 210 after long's begin, long itself to 100 now
    assert scaled(trace, {"long": 0.25}).gpu_span_us.tolist() == [210.0, 210.0]


def host_without(trace: Kineto, name: str) -> Replayed:
    linked, steps = stepped(trace)
    calls = linked.trace.launches.filter(linked.trace.launches["name"].cast(str) == name)
    change = Change(np.zeros(linked.kernels.height, dtype=np.bool_), host_gone=time_of(calls))
    return Timeline(linked, steps).replay(range(len(steps.steps)), change)


def test_a_wait_that_is_gone_lets_the_host_run_ahead() -> None:
    # the host waited from 20 to 120; now it launches b at 30 and the next a at 50, long before the cast ends at 116: a
    # step is 10 + 100 + 10, and 1 before b and before a, as no gap tells what the device needs
    assert host_without(with_sync(), "cudaStreamSynchronize").step_us == 122.0


def test_a_wait_over_a_busy_queue_gains_nothing_when_it_is_gone() -> None:
    trace = waits_over_a_busy_queue()
    assert host_without(trace, "cudaEventSynchronize").step_us == replayed(trace).step_us == 250_000.0


def waits_each_step() -> Kineto:
    """Four steps of 250: 40 in cudaMalloc, a launch, a wait for its work of 150, the rest in cudaFree."""
    trace = Kineto()
    for begin in range(0, 1000, 250):
        trace.annotation(STEP, begin, 240)
        trace.launch(begin, 40, name="cudaMalloc")
        done = trace.call("a", at=begin + 40, duration=150)
        trace.launch(begin + 50, done + 4 - (begin + 50), name="cudaStreamSynchronize")
        trace.launch(done + 5, 250 + begin - done - 6, name="cudaFree")
    return trace


def test_a_wait_that_stays_takes_back_what_the_host_was_ahead() -> None:
    trace = waits_each_step()
    # the host spends 40 in cudaMalloc, 6 until a runs, 150 in a, 4 until the wait returns, and the rest of 250 after it
    assert replayed(trace).step_us == 250.0
    assert host_without(trace, "cudaMalloc").step_us == 210.0


def test_a_wait_for_removed_work_is_not_for_what_another_stream_still_does() -> None:
    trace = Kineto()
    for begin in range(0, 1200, 300):
        trace.annotation(STEP, begin, 290)
        trace.call("a", at=begin, duration=20)
        trace.call("long", at=begin + 10, duration=200, stream=8)
        done = trace.call("gone", at=begin + 20, duration=100)
        trace.launch(begin + 30, done + 4 - (begin + 30), name="cudaStreamSynchronize")
        trace.call("b", at=done + 5, duration=10)
    # a ends at 26, so that the wait, begun at 30, returns at once: the host is 100 ahead, long goes on beside. No call
    # tells what waits for what, so the next a, ready at 206, keeps behind long, from 16 to 216, and a gap of 1. The next
    # long runs from 217 to 417, the wait returns at 241, the third a is ready at 417 and starts at 418. Now its launch
    # holds long: from 427 to 627.
    measured, without = replayed(trace), replayed(trace, ["gone"])
    assert measured.step_us == 300.0
    assert without.duration_us.tolist() == [217 - 6, 418 - 217, 628 - 418]


def test_what_overlaps_on_the_host_is_gone_once() -> None:
    linked, steps = stepped(trace := waits_each_step())
    nothing = np.zeros(linked.kernels.height, dtype=np.bool_)
    (thread,) = linked.trace.launches["thread"].unique()
    begins = linked.trace.launches.filter(linked.trace.launches["name"].cast(str) == "cudaMalloc")["start_ns"]
    changes = [
        Change(nothing, host_gone=np.array([[thread, begin + at * 1000, begin + (at + 20) * 1000] for begin in begins]))
        for at in (0, 10)
    ]
    both = Timeline(linked, steps).replay(range(4), changes[0] | changes[1])
    assert both.step_us == replayed(trace).step_us - 30


def test_factors_multiply() -> None:
    half = Change(np.zeros(2, dtype=np.bool_), factor=np.array([0.5, 1.0]))
    assert (half | half).durations(np.array([100, 100])).tolist() == [25, 100]
    assert (half | Change(np.zeros(2, dtype=np.bool_))).durations(np.array([100, 100])).tolist() == [50, 100]


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
