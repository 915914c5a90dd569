"""Steps of the engine: where each begins, in which phase it is, and which GPU work belongs to it.

Steps begin where an annotation says so, else with the launch of a graph, else where the sequence of kernels repeats;
where nothing tells, the whole recording stands for one. A step's GPU work is what was launched from there until the
next one begins: an annotation ends when the launches do, and samplers run after it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import polars as pl

from stepscope.pipeline.steps.annotations import annotated_steps
from stepscope.pipeline.steps.graph_launches import GRAPH_LAUNCH, graph_steps
from stepscope.pipeline.steps.hole import WAITS, without_hole
from stepscope.pipeline.steps.sequence import sequence_steps
from stepscope.pipeline.steps.shapes import with_tokens
from stepscope.pipeline.steps.spans import spans
from stepscope.pipeline.steps.step import FoundBy, Phase, Step, Steps
from stepscope.pipeline.steps.window import Window, steady

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked

    Ints = NDArray[np.int64]

__all__ = ["CAPTURE", "GRAPH_LAUNCH", "WAITS", "FoundBy", "Phase", "Step", "Steps", "find_steps", "steady_batches"]

K = TypeVar("K")

CAPTURE = "StreamEndCapture|GraphInstantiate"
"""Runtime calls that end the capture of a graph: what was launched before them did not run."""


def find_steps(linked: Linked) -> Steps:
    """Find the steps of a trace, their GPU work, and those of each phase that figures are taken from.

    A recording of a graph's capture has no steps, unless a server marked some or the graph was replayed too: the passes
    that run before a capture warm up for it.
    """
    launches = linked.trace.launches
    captures = launches.filter(launches["name"].cast(pl.String).str.contains(CAPTURE))["start_ns"].to_numpy()
    steps, of_kernel, found_by = _found(linked, captures)
    of_kernel, hole_ns = without_hole(linked, of_kernel)
    found = Steps(steps, of_kernel, found_by, captures.size > 0, hole_ns)
    found = replace(found, steps=with_tokens(linked.trace, found))
    windows = _windows(linked, found, found.phases())
    return replace(found, windows=windows)


def steady_batches(linked: Linked, found: Steps) -> dict[tuple[Phase, int | None], list[int]]:
    """Return the steps of each phase and batch size that figures are taken from; of one batch size, the phase's."""
    groups: dict[tuple[Phase, int | None], list[int]] = {}
    for phase, indices in found.phases().items():
        for index in indices:
            groups.setdefault((phase, found.steps[index].batch_size), []).append(index)
    return {key: list(window.steady) for key, window in _windows(linked, found, groups).items()}


def _found(linked: Linked, captures: Ints) -> tuple[tuple[Step, ...], Ints, FoundBy]:
    if steps := annotated_steps(linked.trace, captures):
        return steps, _launched_in(linked, steps), FoundBy.ANNOTATIONS
    if steps := graph_steps(linked):
        return steps, _launched_in(linked, steps), FoundBy.GRAPH_LAUNCHES
    if captures.size or not linked.kernels.height:
        return (), np.full(linked.kernels.height, -1), FoundBy.RECORDING
    if repeated := sequence_steps(linked):
        return *repeated, FoundBy.KERNEL_SEQUENCE
    return (Step("recording", Phase.UNKNOWN, None, 0),), np.zeros(linked.kernels.height, np.int64), FoundBy.RECORDING


def _launched_in(linked: Linked, steps: Sequence[Step]) -> Ints:
    """Return the step of each kernel: the last that had begun at its launch; -1 before the first, or without launch."""
    if not linked.trace.launches.height:
        return np.full(linked.kernels.height, -1)
    begun = linked.trace.launches["start_ns"].to_numpy()[linked.kernels["launch"].fill_null(0).to_numpy()]
    step = np.searchsorted([step.host_start_ns for step in steps], begun, side="right") - 1
    return np.where(linked.kernels["launch"].is_null().to_numpy(), -1, step)


def _windows(linked: Linked, found: Steps, groups: Mapping[K, list[int]]) -> dict[K, Window]:
    inside = found.step_of_kernel >= 0
    start = linked.kernels["start_ns"].to_numpy()[inside]
    end = start + linked.kernels["duration_ns"].to_numpy()[inside]
    times = spans(found.step_of_kernel[inside], start, end, len(found.steps))
    kernels = found.kernels_per_step()
    windows = {}
    for key, indices in groups.items():
        of = np.array(indices)
        size = [_size(found.steps[index], int(kernels[index])) for index in indices]
        time = np.where(times.followed[of], times.duration(of), times.gpu_span(of))
        windows[key] = steady(of, np.array(size, dtype=np.float64), time)
    return windows


def _size(step: Step, kernels: int) -> int:
    return next((size for size in (step.tokens, step.batch_size) if size is not None), kernels)
