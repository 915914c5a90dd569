"""The step without the profiler: each timed on the device's own clock."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.lab.engine import Engine

ROUNDS = 4
STEPS = 20
"""Timed in a round; the requests start anew in each."""
STEPS_ON_HOST = 5
"""The same without a GPU, where steps are slow and their times mean little."""
WARM_UP = 3


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """What a step takes, from one step's start to the next one's."""

    median_us: float
    low_us: float
    """The 10th percentile."""
    high_us: float
    """The 90th."""
    steps: int
    clock: str
    """`cuda events`, or `host` where there is no GPU."""


def time_steps(engines: Sequence[Engine], *, rounds: int = ROUNDS) -> list[StepTime]:
    """Return what the steps of each engine take, in turns, so that a drift of the machine is the same for all.

    Their requests are at the start afterwards.
    """
    each: list[list[float]] = [[] for _ in engines]
    for _ in range(rounds):
        for engine, times in zip(engines, each, strict=True):
            engine.reset()
            for _ in range(WARM_UP):
                engine.step()
            times.extend(_on_gpu(engine) if engine.device.type == "cuda" else _on_host(engine))
            engine.reset()
    return [_summary(times, engine) for engine, times in zip(engines, each, strict=True)]


def _summary(times: Sequence[float], engine: Engine) -> StepTime:
    deciles = statistics.quantiles(times, n=10, method="inclusive")
    return StepTime(
        median_us=round(statistics.median(times), 2),
        low_us=round(deciles[0], 2),
        high_us=round(deciles[-1], 2),
        steps=len(times),
        clock="cuda events" if engine.device.type == "cuda" else "host",
    )


def memory_bytes(engine: Engine) -> int | None:
    """Return the most device memory that was in use so far; None where there is no GPU."""
    return torch.cuda.max_memory_allocated() if engine.device.type == "cuda" else None


def _on_gpu(engine: Engine) -> list[float]:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]  # type: ignore[no-untyped-call]
    events[0].record()
    for event in events[1:]:
        engine.step()
        event.record()
    torch.cuda.synchronize()
    return [1e3 * start.elapsed_time(end) for start, end in pairwise(events)]


def _on_host(engine: Engine) -> list[float]:
    times = [time.perf_counter()]
    for _ in range(STEPS_ON_HOST):
        engine.step()
        times.append(time.perf_counter())
    return [1e6 * (end - start) for start, end in pairwise(times)]
