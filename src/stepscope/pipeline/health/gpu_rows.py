"""Whether all GPU work was recorded: where some is missing, idle time and totals cannot be believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.steps import GRAPH_LAUNCH, WAITS, FoundBy
from stepscope.trace import TraceWarning, intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps

    Ints = NDArray[np.int64]

STARTS_WORK = r"LaunchKernel|GraphLaunch|LaunchCooperativeKernel"
"""Launches that always leave a row on the GPU, unless they only record a graph."""
MIN_WAITED_NS = 1_000_000
"""A gap in the GPU's timeline this long, in which the host waits for the GPU, hides work that was not recorded."""
MIN_WAITED_SHARE = 0.1
"""So much of the recording must be spent that way before its totals are doubted."""
MIN_NODES_A_US = 0.1
"""A profiled graph launch costs the host about 1 µs a node (0.5 to 2 in the traces at hand), never 10."""
MIN_LAUNCH_US = 200.0
"""Shorter graph launches say nothing about the graph's size."""
MOSTLY_IDLE = 0.5
"""A launch is also slow where the queue is full, but then the GPU is busy."""

_CAPTURE_AGAIN = "record fewer steps, or without stacks, so that the profiler's buffers suffice"


def missing_gpu_rows(linked: Linked, steps: Steps) -> Iterator[TraceWarning]:
    """Warn of steps, replays and stretches of time whose GPU work was not recorded."""
    if not linked.kernels.height:
        yield TraceWarning("no-gpu-events", _nothing_of_the_gpu(linked), spoils_totals=True)
        return
    silent = _steps_without_rows(linked, steps)
    if silent:
        message = f"steps launched work of which no GPU row was recorded; their GPU time is not known; {_CAPTURE_AGAIN}"
        yield TraceWarning("gpu-rows-missing", message, silent, spoils_totals=True)
    partial = _unequal_replays(linked, steps) or _replays_too_small(linked)
    if partial:
        message = f"graph replays were recorded in part, so the GPU's idle time is not known; {_CAPTURE_AGAIN}"
        yield TraceWarning("replay-in-part", message, partial, spoils_totals=True)
    waited = _waited_without_work(linked, steps)
    if waited:
        message = f"gaps in which the host waited for GPU work that was not recorded; {_CAPTURE_AGAIN}"
        yield TraceWarning("unrecorded-work", message, waited, spoils_totals=True)


def _nothing_of_the_gpu(linked: Linked) -> str:
    """Say what the rows of the host tell about why none is the GPU's."""
    trace = linked.trace
    nothing = "nothing recorded of the GPU: no kernels, copies or sets"
    launched = int(_named(linked, STARTS_WORK).sum())
    if launched:
        return f"{nothing}, though {launched:,} were launched (while a graph is captured, none runs)"
    if trace.ops.height:
        return f"{nothing}, and no launch; the process ran on the CPU alone, or recorded without GPU activity"
    return f"{nothing}, and no op; a process that runs no model, as a server's front end, leaves such a trace"


def step_of_launch(linked: Linked, steps: Steps) -> Ints:
    """Return the step in which each row of `trace.launches` was called, -1 before the first."""
    return steps.at(linked.trace.launches["start_ns"].to_numpy())


def _named(linked: Linked, pattern: str) -> NDArray[np.bool_]:
    return linked.trace.launches["name"].cast(pl.String).str.contains(pattern).to_numpy()


def _steps_without_rows(linked: Linked, steps: Steps) -> int:
    """Count steps whose kernel launches have no GPU row at all; launches under graph capture leave none.

    Where graphs tell the steps, a launch of one without rows was to be a step, or the part of one.
    """
    if steps.is_capture:
        return 0
    if steps.found_by is FoundBy.GRAPH_LAUNCHES:
        begun = step_of_launch(linked, steps) >= 0
        return int((begun & _named(linked, GRAPH_LAUNCH) & (_rows_of_launch(linked) == 0)).sum())
    if not steps.annotated:
        return 0
    step = step_of_launch(linked, steps)[_named(linked, STARTS_WORK)]
    return len(set(step[step >= 0].tolist()) - set(steps.step_of_kernel.tolist()))


def _rows_of_launch(linked: Linked) -> Ints:
    return np.bincount(linked.kernels["launch"].drop_nulls().to_numpy(), minlength=linked.trace.launches.height)


def _unequal_replays(linked: Linked, steps: Steps) -> int:
    """Count replays with fewer GPU rows than the replay at the same place of another step of the same batch.

    Graphs differ in size, also within a step, so only like is compared with like: without a batch size nothing is.
    """
    if not steps.annotated or steps.is_capture:
        return 0
    is_replay = _named(linked, GRAPH_LAUNCH)
    rows, step_of_replay = _rows_of_launch(linked)[is_replay], step_of_launch(linked, steps)[is_replay]
    like: dict[object, list[int]] = {}
    for index, step in enumerate(steps.steps):
        if step.batch_size is None:
            continue
        first, last = np.searchsorted(step_of_replay, [index, index + 1])
        for place, size in enumerate(rows[first:last].tolist()):
            like.setdefault((step.phase, step.batch_size, last - first, place), []).append(size)
    largest = {alike: max(group) for alike, group in like.items()}
    return sum(size < largest[alike] for alike, group in like.items() for size in group)


def _replays_too_small(linked: Linked) -> int:
    """Count replays with far fewer GPU rows than their launch took time for, on a GPU that is mostly idle."""
    start = linked.kernels["start_ns"].to_numpy()
    end = start + linked.kernels["duration_ns"].to_numpy()
    if intervals.covered(start, end) > (1 - MOSTLY_IDLE) * (end.max() - start.min()):
        return 0
    call_us = linked.trace.launches["duration_ns"].to_numpy() / 1e3
    rows = _rows_of_launch(linked)
    is_replay = _named(linked, GRAPH_LAUNCH) & (rows > 0) & (call_us >= MIN_LAUNCH_US)
    return int((is_replay & (rows < MIN_NODES_A_US * call_us)).sum())


def _waited_without_work(linked: Linked, steps: Steps) -> int:
    """Count the gaps inside steps that the host spent waiting for the GPU, where they are much of the recording."""
    inside = steps.step_of_kernel >= 0
    start = linked.kernels["start_ns"].to_numpy()[inside]
    end = start + linked.kernels["duration_ns"].to_numpy()[inside]
    gap_start, gap_end = intervals.gaps(start, end)
    calls = linked.trace.launches.filter(pl.Series(_named(linked, WAITS.pattern)))
    wait_start = calls["start_ns"].to_numpy()
    waits = intervals.union(wait_start, wait_start + calls["duration_ns"].to_numpy())
    waited = intervals.time_covered_before(gap_end, *waits) - intervals.time_covered_before(gap_start, *waits)
    long = waited >= MIN_WAITED_NS
    if not long.any() or waited[long].sum() < MIN_WAITED_SHARE * (end.max() - start.min()):
        return 0
    return int(long.sum())
