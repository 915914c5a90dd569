"""The replay: the identity without a change, and worked by hand with one. All times are µs."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kineto import Kineto
from tests.published_cases import waits_over_a_busy_queue
from tests.replays import host_without, replayed, scaled
from tests.stages import stepped

from stepscope.pipeline.whatif import Change, Timeline

STEP = "step[DECODE bs=1]"


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
    # a ends at 16, so the wait that began at 20 takes its own 4: everything after it moves up by 96
    assert without.step_us == 54.0
    assert without.gpu_span_us.tolist() == [44.0, 44.0]  # a at 6, b from 40 to 50


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
    # a ends at 26, so that the wait, begun at 30, takes its own 4: the host is 96 ahead, long goes on beside. No call
    # tells what waits for what, so the next a, ready at 210, keeps behind long, from 16 to 216, and a gap of 1. The
    # next long is launched for 220 and ends at 420, the wait returns at 241, 189 ahead; the third a keeps behind long,
    # from 421. The third long is launched for 427, the wait returns at 445, and the last a keeps behind its end at 627.
    measured, without = replayed(trace), replayed(trace, ["gone"])
    assert measured.step_us == 300.0
    assert without.duration_us.tolist() == [217 - 6, 421 - 217, 628 - 421]


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
