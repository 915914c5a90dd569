"""Threads may be as many as calls: what is asked of each must not pass over all calls."""

from __future__ import annotations

import time

from tests.kineto import Kineto
from tests.stages import stepped

from stepscope.pipeline.whatif import Timeline

MANY, MORE = 5_000, 40_000
MOST = 20
"""Eight times as many take about 8 times as long; with a pass over all calls for each, about 30 times as long."""


def seconds(threads: int) -> float:
    trace = Kineto()
    trace.annotation("step[DECODE bs=1]", 1, threads * 7.0)
    for thread in range(threads):
        trace.call("k", at=10 + thread * 7.0, duration=5, tid=thread)
    linked, steps = stepped(trace)
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        Timeline(linked, steps)
        times.append(time.perf_counter() - begin)
    return min(times)


def test_the_time_of_a_replay_grows_as_its_threads_do() -> None:
    assert seconds(MORE) < MOST * seconds(MANY)
