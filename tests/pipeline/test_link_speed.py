"""Linking takes time as sorting does; `benchmarks/bench_link.py` measures the seconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from bench_link import link_whole, nested_trace

from stepscope.pipeline.link import link

if TYPE_CHECKING:
    from collections.abc import Callable

EVENTS = 240_000
MOST = 100
"""Times that of an index sort of as many numbers: linking whole takes about 6, a loop over events several hundred."""


def fastest(work: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def test_linking_takes_no_loop_over_events() -> None:
    trace = nested_trace(EVENTS)
    linked = link(trace)
    assert linked.kernels["launch"].to_list() == list(range(linked.kernels.height))
    assert set(trace.ops["name"].gather(linked.kernels["op"])) == {"aten::mm"}  # the innermost of three
    numbers = np.random.default_rng(0).integers(0, 1 << 62, trace.event_count)
    assert fastest(lambda: link_whole(trace)) < MOST * fastest(lambda: np.argsort(numbers, kind="stable"))
