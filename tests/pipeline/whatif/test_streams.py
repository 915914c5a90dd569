"""What work of one stream waits for on others, and threads that go on from one another. All times are µs."""

from __future__ import annotations

import polars as pl
from tests.kineto import Kineto
from tests.replays import replayed
from tests.stages import stepped

from stepscope.pipeline.whatif.device import MOST_STREAMS, Device

STEP = "step[DECODE bs=1]"


def edges(trace: Kineto) -> list[tuple[str, str]]:
    """Return what waits for what, by name."""
    linked, _ = stepped(trace)
    device = Device(linked, linked.kernels["launch"].cast(pl.Int64).fill_null(-1).to_numpy())
    names, found = linked.kernels["name"].cast(str).to_list(), device.edges()
    return [(names[before], names[after]) for before, after in zip(found.before, found.after, strict=True)]


def test_what_is_launched_after_a_wait_waits_for_what_was_launched_before_the_event() -> None:
    trace = Kineto()
    trace.annotation(STEP, 0, 400)
    trace.call("a", at=0, duration=50)
    trace.launch(5, 1, name="cudaEventRecord")
    trace.call("later", at=10, duration=10, stream=9)  # not before the event
    trace.launch(20, 1, name="cudaStreamWaitEvent")
    trace.call("b", at=100, duration=10, stream=8)
    trace.call("c", at=120, duration=10, stream=8)  # follows b in any case
    assert edges(trace) == [("a", "b")]


def test_an_event_that_the_recording_contradicts_makes_nothing_wait() -> None:
    trace = Kineto()
    trace.annotation(STEP, 0, 400)
    trace.call("a", at=0, duration=200)
    trace.launch(5, 1, name="cudaEventRecord")
    trace.launch(6, 1, name="cudaStreamWaitEvent")
    trace.call("b", at=50, duration=10, stream=8)  # runs beside a
    assert edges(trace) == []


def test_without_calls_on_events_work_keeps_behind_what_had_ended() -> None:
    trace = Kineto()
    trace.annotation(STEP, 0, 400)
    trace.call("a", at=0, duration=20)
    trace.call("b", at=50, duration=10, stream=8)
    trace.call("c", at=90, duration=10)
    assert edges(trace) == [("a", "b"), ("b", "c")]


def test_branches_of_a_graph_keep_their_order_and_other_launches_do_not() -> None:
    trace = Kineto()
    trace.annotation(STEP, 0, 400)
    trace.launch(0, 1, name="cudaEventRecord")
    graph = trace.launch(2, 8, name="cudaGraphLaunch")
    for name, start, duration, stream in (("a", 12, 10, 7), ("side", 23, 20, 8), ("b", 23, 5, 7), ("c", 44, 5, 7)):
        trace.kernel(name, start, duration, correlation=graph, stream=stream)
    trace.call("copy", at=60, duration=10, stream=9)
    assert edges(trace) == [("a", "side"), ("side", "c")]


def test_work_on_another_stream_moves_up_with_what_it_waits_for() -> None:
    trace = Kineto()
    trace.annotation(STEP, 0, 400)
    for name, us in (("first", 20), ("cast", 200), ("a", 30)):
        trace.call(name, at=0 if name == "first" else 5, duration=us)
    trace.launch(10, 1, name="cudaEventRecord")
    trace.launch(11, 1, name="cudaStreamWaitEvent")
    correlation = trace.launch(12)
    trace.kernel("side", 257, 40, correlation=correlation, stream=8)  # a ends at 256
    assert replayed(trace).gpu_span_us.tolist() == [291.0]
    assert replayed(trace, ["cast"]).gpu_span_us.tolist() == [91.0]


def test_streams_beyond_the_most_count_as_one() -> None:
    trace = Kineto()
    trace.annotation(STEP, 0, 4000)
    for stream in range(3 * MOST_STREAMS):
        trace.call("k", at=10.0 * stream, duration=30, stream=stream)
    assert replayed(trace).gpu_span_us.tolist() == [10.0 * (3 * MOST_STREAMS - 1) + 30]


def handed_over(idle: float) -> Kineto:
    """A thread waits for a cast; then another one, silent for so long, launches the rest of the step."""
    trace = Kineto()
    for begin in (0.0, 5000.0):
        trace.annotation(STEP, begin, 4990)
        trace.call("other", at=begin + 1, duration=10, tid=2)
        done = trace.call("cast", at=begin + 10, duration=idle)
        trace.launch(begin + 20, done + 4 - (begin + 20), name="cudaStreamSynchronize")
        trace.call("b", at=done + 14, duration=100, tid=2)
    return trace


def test_a_thread_that_was_silent_goes_on_from_the_one_that_had_its_turn() -> None:
    trace = handed_over(2000)
    (measured, _), (without, _) = (replayed(trace, gone).gpu_span_us.tolist() for gone in ([], ["cast"]))
    # other runs from 7 to 17, the cast to 2017, the wait returns at 2021, b is launched at 2031 and ends at 2137.
    # Without the cast the wait, begun at 20, returns at 24, 1997 earlier.
    assert (measured, without) == (2137.0 - 7, 2137.0 - 1997 - 7)


def test_a_thread_that_goes_on_at_once_has_a_clock_of_its_own() -> None:
    trace = handed_over(300)
    (measured, _), (without, _) = (replayed(trace, gone).gpu_span_us.tolist() for gone in ([], ["cast"]))
    assert without == measured
