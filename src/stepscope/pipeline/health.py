"""The quality gate: what this trace can and cannot answer. It runs before any finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.link import NONE, innermost
from stepscope.trace import TraceWarning

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps

FEW_STEPS = 3
"""Fewer steps than this show no spread."""
MOST_KERNELS = 0.5
"""Share of the kernels that must be launched one by one from Python functions; a graph's neighbours are a few."""
STARTS_WORK = r"LaunchKernel|GraphLaunch|LaunchCooperativeKernel"
"""Launches that always leave a row on the GPU, unless they only record a graph."""


def check_health(linked: Linked, steps: Steps) -> list[TraceWarning]:
    """Return what a reader must know before believing numbers from this trace, the loader's warnings first."""
    return [*linked.trace.warnings, *_gpu_rows(linked, steps), *_steps(linked, steps), *_recording(linked, steps)]


def is_complete(warnings: Iterable[TraceWarning]) -> bool:
    """Whether idle time and totals can be believed."""
    return not any(warning.spoils_totals for warning in warnings)


def has_stacks(linked: Linked) -> bool:
    """Whether most kernels have a launch of their own in a Python function; a graph's kernels share one."""
    frames, launches = linked.trace.frames, linked.trace.launches[linked.kernels["launch"].drop_nulls().unique()]
    if not frames.height or not launches.height:
        return False
    around = innermost(
        frames["thread"].to_numpy(),
        frames["start_ns"].to_numpy(),
        (frames["start_ns"] + frames["duration_ns"]).to_numpy(),
        launches["thread"].to_numpy(),
        launches["start_ns"].to_numpy(),
    )
    return bool((around != NONE).sum() > MOST_KERNELS * linked.kernels.height)


def has_shapes(linked: Linked) -> bool:
    """Whether any op has the shapes of its inputs."""
    dims = linked.trace.ops["input_dims"]
    return bool(dims.null_count() < dims.len())


def _gpu_rows(linked: Linked, steps: Steps) -> Iterator[TraceWarning]:
    if not linked.kernels.height:
        yield TraceWarning(
            "no-gpu-events", "nothing recorded of the GPU: no kernels, copies or sets", spoils_totals=True
        )
        return
    silent = _steps_without_gpu_rows(linked, steps)
    if silent:
        message = "steps launched work of which no GPU row was recorded; their GPU time is not known"
        yield TraceWarning("gpu-rows-missing", message, silent, spoils_totals=True)
    partial = _replays_in_part(linked, steps)
    if partial:
        message = "graph replays have fewer GPU rows than the same replay of other steps: they were recorded in part"
        yield TraceWarning("replay-in-part", message, partial, spoils_totals=True)


def _steps_without_gpu_rows(linked: Linked, steps: Steps) -> int:
    """Count steps whose kernel launches have no GPU row at all; launches under graph capture leave none."""
    if not steps.annotated or steps.is_capture:
        return 0
    starting = linked.trace.launches.filter(pl.col("name").cast(pl.String).str.contains(STARTS_WORK))
    begins = np.array([step.host_start_ns for step in steps.steps], dtype=np.int64)
    step_of_launch = np.searchsorted(begins, starting["start_ns"].to_numpy(), side="right") - 1
    launching = set(step_of_launch[step_of_launch >= 0].tolist())
    return len(launching - set(steps.step_of_kernel.tolist()))


def _replays_in_part(linked: Linked, steps: Steps) -> int:
    """Count replays with fewer GPU rows than the replay at the same place of another step of the same batch.

    Graphs differ in size, also within a step, so only like is compared with like: without a batch size nothing is.
    """
    if not steps.annotated or steps.is_capture:
        return 0
    launches = linked.trace.launches
    sizes = np.bincount(linked.kernels["launch"].drop_nulls().to_numpy(), minlength=launches.height)
    replays = np.flatnonzero(launches["name"].cast(pl.String).str.contains("GraphLaunch").to_numpy())
    begins = np.array([step.host_start_ns for step in steps.steps], dtype=np.int64)
    # launches are in order of start, so each step's replays lie together, after those before the first step
    first_of_step = np.searchsorted(launches["start_ns"].to_numpy()[replays], begins, side="left")
    like: dict[object, list[int]] = {}
    for step, of_step in zip(steps.steps, np.split(sizes[replays], first_of_step)[1:], strict=True):
        for place, size in enumerate(of_step.tolist() if step.batch_size is not None else []):
            like.setdefault((step.phase, step.batch_size, of_step.size, place), []).append(size)
    return sum(size < max(group) for group in like.values() for size in group)


def _steps(linked: Linked, steps: Steps) -> Iterator[TraceWarning]:
    if not linked.kernels.height:
        return
    if steps.is_capture:
        message = "a graph was captured while recording: what was launched into it did not run, and has no GPU rows"
        yield TraceWarning("graph-capture", message)
    elif not steps.annotated:
        yield TraceWarning("no-step-annotations", "nothing marks a step, so the whole recording stands for one")
    elif len(steps.steps) < FEW_STEPS:
        yield TraceWarning("few-steps", "fewer than three steps: no spread can be told", len(steps.steps))
    if steps.hole_ns:
        message = (
            f"{steps.hole_ns / 1e6:.1f} ms at the start, in which the host waited for unrecorded work, are left out"
        )
        yield TraceWarning("hole-at-start", message)


def _recording(linked: Linked, steps: Steps) -> Iterator[TraceWarning]:
    if linked.kernels.height and not has_shapes(linked):
        yield TraceWarning("no-shapes", "input shapes were not recorded (record_shapes=True records them)")
    if linked.kernels.height and has_stacks(linked):
        message = (
            "Python stacks were recorded, which slows the host: launch times and gaps include the profiler's own cost"
        )
        yield TraceWarning("stacks-slow-host", message)
    outside = int((steps.step_of_kernel < 0).sum())
    if outside:
        yield TraceWarning(
            "outside-steps", "GPU rows belong to no step (queued or launched outside every step)", outside
        )
