"""Times of calls on the device, by its own clock, in short bursts after a rest.

Within a second of nothing but matrix products, a GPU reaches its power limit and lowers its clock: an H200 falls from
795 to 671 BF16 TFLOPS. In a step such work is short and has memory-bound work around it, so the burst is its ceiling.
And calls are launched as they are, since a copy in a CUDA graph goes another way, at 2.7 instead of 4.3 TB/s there.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from stepscope.paged_mla.bench.timing import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BURSTS = 3
CALLS = 10
"""In a burst; some ms of work each time."""
WARM_UP = 3
"""Calls before each burst that are not timed: clocks rise, and libraries choose their kernels."""
REST_S = 0.5


def time_bursts(call: Callable[[], object]) -> Timing:
    """Return what a call takes on the current CUDA device: the median over all bursts."""
    each: list[float] = []
    for _ in range(BURSTS):
        torch.cuda.synchronize()
        time.sleep(REST_S)
        for _ in range(WARM_UP):
            call()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(CALLS + 1)]  # type: ignore[no-untyped-call]
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        torch.cuda.synchronize()
        each += [1e3 * start.elapsed_time(end) for start, end in pairwise(events)]
    return summary(each)


def summary(us: Sequence[float]) -> Timing:
    """Return the median of times in µs, and the distance between their quartiles."""
    low, middle, high = statistics.quantiles(us, n=4, method="inclusive")
    return Timing(middle, high - low)
