"""Timing by replays of a CUDA graph that walks over all pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

MIN_CALLS = 12  # calls in one graph: the replay's own start must not count
REPLAYS = 30


@dataclass(frozen=True)
class Timing:
    """Microseconds a call: the median over replays, and the distance between their quartiles."""

    us: float
    spread_us: float


def time_calls(call: Callable[[int], object], pools: int) -> Timing:
    """Time ``call(i)`` for each of ``pools`` pools in turn.

    Args:
        call: launches one decode on pool ``i``; capturable.
        pools: how many distinct pools the graph walks over.
    """
    rounds = -(-MIN_CALLS // pools)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(min(pools, 3)):
            call(i)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL watches from another
        for _ in range(rounds):
            for i in range(pools):
                call(i)
    for _ in range(3):
        graph.replay()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * REPLAYS)]  # type: ignore[no-untyped-call]
    starts, ends = events[:REPLAYS], events[REPLAYS:]
    for start, end in zip(starts, ends, strict=True):
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    each = torch.tensor([1e3 * s.elapsed_time(e) for s, e in zip(starts, ends, strict=True)]) / (rounds * pools)
    quartiles = torch.quantile(each, torch.tensor([0.25, 0.5, 0.75]))
    return Timing(float(quartiles[1]), float(quartiles[2] - quartiles[0]))
