"""The quality gate: what this trace can and cannot answer. It runs before any finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope import units
from stepscope.pipeline.health.gpu_rows import missing_gpu_rows
from stepscope.pipeline.link import NONE, innermost
from stepscope.pipeline.steps import GRAPH_LAUNCH, FoundBy
from stepscope.trace import TraceWarning, intervals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps
    from stepscope.pipeline.steps.window import Window

FEW_STEPS = 3
"""Fewer steps than this show no spread."""
MOST_KERNELS = 0.5
"""Share of the kernels that must be launched one by one from Python functions; a graph's neighbours are a few."""
OVERLAP_NS = 20_000
"""Kernels of one stream overlap by up to 13 µs with programmatic launch; more was not recorded right."""
LITTLE_OUTSIDE = 0.01
"""Less than this share of the GPU's time outside every step changes no figure: copies before and after the steps."""
UNSTABLE = 1.5
"""Steps of one phase and batch whose numbers of kernels differ by this factor do not do the same work."""


def check_health(linked: Linked, steps: Steps, layers: int | None) -> list[TraceWarning]:
    """Return what a reader must know before believing numbers from this trace, the loader's warnings first.

    Args:
        linked: the trace.
        steps: its steps.
        layers: the model's layers, each of which has at least one kernel in a step; None where not known.
    """
    return [
        *linked.trace.warnings,
        *missing_gpu_rows(linked, steps),
        *_steps(linked, steps, layers),
        *_recording(linked, steps),
    ]


def is_complete(warnings: Iterable[TraceWarning]) -> bool:
    """Whether idle time and totals can be believed."""
    return not any(warning.spoils_totals for warning in warnings)


def has_stacks(linked: Linked) -> bool:
    """Whether most kernels have a launch of their own in a Python function; a graph's kernels share one.

    Old traces have no spans of functions, but the stack as text on the op.
    """
    if not linked.trace.frames.height:
        told = linked.trace.ops["call_stack"].gather(linked.kernels["op"].drop_nulls()).is_not_null().sum()
        return told > MOST_KERNELS * linked.kernels.height
    frames, launches = linked.trace.frames, linked.trace.launches[linked.kernels["launch"].drop_nulls().unique()]
    if not launches.height:
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
    """Whether any op has the shapes of its inputs, here or in the trace that was joined."""
    traces = (linked.trace,) if linked.donor is None else (linked.trace, linked.donor)
    return any(bool(trace.ops["input_dims"].is_not_null().any()) for trace in traces)


def _steps(linked: Linked, steps: Steps, layers: int | None) -> Iterator[TraceWarning]:
    if not linked.kernels.height:
        return
    if steps.is_capture:
        message = "a graph was captured while recording: what was launched into it did not run, and has no GPU rows"
        yield TraceWarning("graph-capture", message)
    if steps.steps and not steps.annotated:
        yield TraceWarning("no-step-annotations", f"no annotation marks a step: {_found_by(steps)}")
    if steps.found_by is not FoundBy.RECORDING and len(steps.steps) < FEW_STEPS:
        yield TraceWarning("few-steps", "fewer than three steps: no spread can be told", len(steps.steps))
    if steps.hole_ns:
        message = f"{steps.hole_ns / 1e6:.1f} ms at the start, in which unrecorded work ran, are left out"
        yield TraceWarning("hole-at-start", message, is_note=True)
    left_out = {phase: window for phase, window in steps.windows.items() if window.left_out}
    if left_out:
        message = "; ".join(f"{phase}: {_reasons(window)}" for phase, window in left_out.items())
        count = sum(window.left_out for window in left_out.values())
        only_first = not any(window.other_size or window.outliers for window in left_out.values())
        yield TraceWarning("steps-left-out", f"figures leave steps out: {message}", count, is_note=only_first)
    mixed = {phase: window.mixed for phase, window in steps.windows.items() if window.mixed}
    if mixed:
        ranges = "; ".join(f"{phase}: {low} to {high}" for phase, (low, high) in mixed.items())
        message = f"steps of different sizes (tokens, else requests, else kernels) are taken together: {ranges}"
        yield TraceWarning("mixed-sizes", message, len(mixed))
    if steps.found_by is not FoundBy.RECORDING:
        yield from _kernels_per_step(steps, layers)


def _found_by(steps: Steps) -> str:
    match steps.found_by:
        case FoundBy.GRAPH_LAUNCHES:
            return "steps are taken from graph launches, and their phases are not known"
        case FoundBy.KERNEL_SEQUENCE:
            kernels = int(np.median(steps.kernels_per_step()))
            return f"steps are taken from the repeating sequence of {kernels:,} kernels, and their phases are not known"
    return "the whole recording stands for one"


def _reasons(window: Window) -> str:
    reasons = ["the first"] if window.first is not None else []
    if window.other_size:
        reasons.append(f"{len(window.other_size)} of another size")
    if window.outliers:
        limit, cost = window.limit_ns / 1e6, window.outliers_cost_ns / 1e3
        reasons.append(
            f"{len(window.outliers)} longer than {limit:.2f} ms, which cost {cost:,.0f} µs beyond the median"
        )
    return ", ".join(reasons)


def _kernels_per_step(steps: Steps, layers: int | None) -> Iterator[TraceWarning]:
    counts = steps.kernels_per_step()
    few = int(((counts > 0) & (counts < layers)).sum()) if layers is not None else 0
    if few:
        message = f"steps have fewer kernels than the model has layers ({layers}): recorded in part, or another model"
        yield TraceWarning("fewer-kernels-than-layers", message, few)
    like: dict[object, list[int]] = {}
    for step, count in zip(steps.steps, counts.tolist(), strict=True):
        if count and step.batch_size is not None:
            like.setdefault((step.phase, step.batch_size), []).append(count)
    largest = {alike: max(group) for alike, group in like.items()}
    unstable = sum(largest[alike] > UNSTABLE * count for alike, group in like.items() for count in group)
    if unstable:
        message = "steps have far fewer kernels than others of the same phase and batch; medians mix different work"
        yield TraceWarning("unstable-steps", message, unstable)


def _recording(linked: Linked, steps: Steps) -> Iterator[TraceWarning]:
    if not linked.kernels.height:
        return
    if not has_shapes(linked):
        yield TraceWarning("no-shapes", _not_recorded(linked, "input shapes", "record_shapes"), is_note=True)
    if has_stacks(linked):
        message = "Python stacks were recorded, which slows the host: gaps and launch times include the profiler's cost"
        yield TraceWarning("stacks-slow-host", message)
        if not _has_modules(linked):
            message = "modules were not recorded (with_modules=True records them)"
            yield TraceWarning("no-modules", message, is_note=True)
    elif linked.donor is None or not linked.donor.frames.height:
        yield TraceWarning("no-stacks", _not_recorded(linked, "Python stacks", "with_stack"), is_note=True)
    overlapping = _overlaps(linked)
    if overlapping:
        message = (
            "kernels overlap the next of their stream by more than 20 µs; their own durations are not to be trusted"
        )
        yield TraceWarning("overlapping-kernels", message, overlapping)
    outside = steps.step_of_kernel < 0
    if outside.any():
        start = linked.kernels["start_ns"].to_numpy()
        end = start + linked.kernels["duration_ns"].to_numpy()
        busy, all_busy = intervals.covered(start[outside], end[outside]), intervals.covered(start, end)
        message = f"GPU rows belong to no step (queued or launched outside every step): {units.time(busy / 1e3)}"
        is_little = busy < LITTLE_OUTSIDE * all_busy
        yield TraceWarning("outside-steps", message, int(outside.sum()), is_note=is_little)


def _not_recorded(linked: Linked, what: str, option: str) -> str:
    """Say what is missing; a graph's kernels have no op of their own, so no option records it with them."""
    if linked.donor is not None and linked.donor is not linked.trace:
        return f"{what} were recorded neither here nor in --capture-trace ({option}=True records them)"
    launches = linked.trace.launches["name"].cast(pl.String).gather(linked.kernels["launch"].drop_nulls())
    if launches.str.contains(GRAPH_LAUNCH).sum() > MOST_KERNELS * linked.kernels.height:
        return f"{what} are not recorded of kernels that a graph replays; --capture-trace can tell them"
    return f"{what} were not recorded ({option}=True records them)"


def _has_modules(linked: Linked) -> bool:
    spans = linked.trace.frames["name"].cast(pl.String).str.starts_with("nn.Module")
    return bool(spans.any() or linked.trace.ops["module_hierarchy"].is_not_null().any())


def _overlaps(linked: Linked) -> int:
    """Count kernels that end more than 20 µs after the next one of their stream has begun."""
    ends = pl.col("start_ns") + pl.col("duration_ns")
    early = ends - pl.col("start_ns").shift(-1).over("device", "stream")
    return int(linked.kernels.select((early > OVERLAP_NS).sum()).item())
