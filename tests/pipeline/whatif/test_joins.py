"""Threads that launch and wait for others, which compute on the CPU and launch nothing. All times are µs."""

from __future__ import annotations

import pytest
from tests.answers import rules
from tests.examples.launch_bound import small_kernels_launched_one_by_one
from tests.kineto import Kineto
from tests.published_waits import calls_beside_experts_on_the_cpu
from tests.replays import host_without
from tests.stages import diagnosed, stepped

from stepscope.pipeline.whatif.joins import joins

STEP = "step[DECODE bs=1]"
STEP_US, WORKER = 1000, 2
Ops = list[tuple[str, float, float]]
"""Name, start and duration."""
EXPERTS: Ops = [("aten::linear", 5, 980)]


def steps_with(ops: Ops) -> Kineto:
    """Four steps: 40 in cudaMalloc, a launch, nothing until the step is over, and ops of another thread."""
    trace = Kineto()
    for begin in range(0, 4 * STEP_US, STEP_US):
        trace.annotation(STEP, begin, STEP_US - 1)
        trace.launch(begin, 40, name="cudaMalloc")
        trace.call("a", at=begin + 40, duration=150)  # the call takes 4
        for name, start, duration in ops:
            trace.op(name, begin + start, duration, tid=WORKER)
    return trace


def joined(trace: Kineto) -> list[tuple[float, float]]:
    """Return since when a thread waited, and when it went on, in µs after the first call."""
    loaded = stepped(trace)[0].trace
    first = loaded.launches["start_ns"][0]
    return [((join.since - first) / 1e3, (join.at - first) / 1e3) for join in joins(loaded)]


def test_a_thread_goes_on_once_what_another_computes_is_done() -> None:
    # from the end of the launch to the next step's first call
    assert joined(steps_with(EXPERTS)) == [(44, 1000), (1044, 2000), (2044, 3000)]
    assert joined(steps_with([("aten::linear", 5, 500), ("aten::mul", 510, 480)])) == joined(steps_with(EXPERTS))


@pytest.mark.parametrize(
    "ops",
    [
        [("worker.py: loop", 5, 980)],  # a range of the program's own may hold nothing but waiting
        [("aten::linear", 5, 700)],  # done 295 before
        [("aten::linear", 5, 1000)],  # not done yet
        [("aten::linear", 150, 835)],  # 835 of 956: 87%
    ],
)
def test_other_work_beside_a_silence_is_not_what_ends_it(ops: Ops) -> None:
    assert joined(steps_with(ops)) == []


def test_a_thread_that_works_itself_waits_for_nobody() -> None:
    trace = steps_with(EXPERTS)
    for begin in range(0, 4 * STEP_US, STEP_US):
        trace.op("aten::sort", begin + 300, 300)
    assert joined(trace) == []


def test_a_thread_that_launches_is_none_of_these() -> None:
    trace = steps_with(EXPERTS)
    trace.call("b", at=50, duration=10, tid=WORKER)
    assert joined(trace) == []


def test_what_is_gone_before_a_join_gains_nothing() -> None:
    assert host_without(steps_with(EXPERTS), "cudaMalloc").step_us == STEP_US
    assert host_without(steps_with([]), "cudaMalloc").step_us == STEP_US - 40


def test_the_host_is_ruled_out_where_the_gpu_waits_for_experts_on_the_cpu() -> None:
    """colibri#431: of 172.0 ms a token the GPU works for 45.7, and the threads are apart for 118.2."""
    (row,) = (row for row in diagnosed(calls_beside_experts_on_the_cpu()).ruled_out if row.hypothesis == "host launch")
    assert "while the thread that launches waits for one that computes" in row.reason


def test_launches_one_by_one_beside_a_thread_that_computes_are_still_launch_bound() -> None:
    trace = small_kernels_launched_one_by_one()
    until = max(event["ts"] + event["dur"] for event in trace.events)
    for at in range(10, int(until), 100):
        trace.op("aten::embedding_bag", at, 90, tid=WORKER)
    assert rules(diagnosed(trace)) == ["launch-bound"]
