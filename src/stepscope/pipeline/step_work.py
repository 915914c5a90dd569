"""The work of a step, by class and by kernel: what two traces are compared by."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.steps import steady_batches
from stepscope.pipeline.steps.middle import Middle
from stepscope.trace import intervals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Phase, Steps


MOST_KINDS = 100
"""Each kind of step is a pass over the trace."""


@dataclass(frozen=True, slots=True)
class Work:
    """What runs in every step: medians over the steps."""

    calls_per_step: float
    time_us_per_step: float


@dataclass(frozen=True, slots=True)
class KernelWork:
    """All launches of one kernel in a step."""

    kernel_class: str
    work: Work
    """Its time is the sum of its launches'."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """The steps of one phase and batch size that figures are taken from, and their work."""

    phase: Phase
    batch_size: int | None
    tokens: int | None
    """New tokens of the typical step."""
    count: int
    """Steps found, of which figures leave some out."""
    duration_us: NDArray[np.float64]
    """Shape [steps that another one follows]; of a single step its GPU work's."""
    gpu_span_us: NDArray[np.float64]
    """Shape [steps]."""
    class_us: Mapping[str, float]
    """The middle step taken apart; with `idle_us` it adds up to the median duration."""
    idle_us: float
    classes: Mapping[str, Work]
    """By class; its time is the union of its intervals."""
    kernels: Mapping[str, KernelWork]
    """By name."""
    sequence: pl.DataFrame
    """The kernels of one of these steps in order of start: `name`, `grid_x`, `grid_y`, `grid_z`."""


def step_work(linked: Linked, steps: Steps, class_of_kernel: NDArray[np.str_]) -> list[StepWork]:
    """Return the work of the steps of each phase and batch size, of the `MOST_KINDS` that most steps are of.

    Args:
        linked: the trace.
        steps: its steps.
        class_of_kernel: shape [kernels].
    """
    middle = Middle(linked, steps, class_of_kernel)
    ran = np.flatnonzero(steps.kernels_per_step()).tolist()
    counts = Counter((steps.steps[index].phase, steps.steps[index].batch_size) for index in ran)
    frequent = dict(counts.most_common(MOST_KINDS))
    found = []
    for (phase, batch), chosen in steady_batches(linked, steps).items():
        if (phase, batch) not in frequent:
            continue
        timed, until = middle.timed(chosen)
        duration_us, class_us = middle.median(chosen)
        found.append(
            StepWork(
                phase=phase,
                batch_size=batch,
                tokens=steps.typical(chosen).tokens,
                count=counts[phase, batch],
                duration_us=(until[timed] - middle.spans.begin[timed]) / 1e3,
                gpu_span_us=middle.spans.gpu_span(np.asarray(chosen)) / 1e3,
                class_us=class_us,
                idle_us=max(duration_us - sum(class_us.values()), 0.0),
                classes=work_by_class(linked, steps, class_of_kernel, chosen),
                kernels=_work_by_kernel(linked, steps, class_of_kernel, chosen),
                sequence=_sequence(linked, steps, chosen[len(chosen) // 2]),
            )
        )
    return found


def work_by_class(
    linked: Linked, steps: Steps, class_of_kernel: NDArray[np.str_], chosen: Sequence[int]
) -> dict[str, Work]:
    """Return the work of these steps by kernel class: its time is the union of the class's intervals over streams."""
    rows = np.flatnonzero(steps.rows(chosen))
    start = linked.kernels["start_ns"].to_numpy()
    end = start + linked.kernels["duration_ns"].to_numpy()
    step, count = steps.step_of_kernel, len(steps.steps)
    found = {}
    for name, places in _places(class_of_kernel[rows]).items():
        mine = rows[places]
        covered = intervals.covered_by_group(start[mine], end[mine], step[mine], count)[list(chosen)]
        calls = np.bincount(step[mine], minlength=count)[list(chosen)]
        found[name] = Work(float(np.median(calls)), float(np.median(covered)) / 1e3)
    return found


def _places(classes: NDArray[np.str_]) -> dict[str, NDArray[np.int64]]:
    """Return where each class stands. Millions of rows are of a few classes: numbering them is faster than sorting."""
    number = pl.Series(classes, dtype=pl.String).cast(pl.Categorical).to_physical().to_numpy()
    of_class = (np.flatnonzero(number == each) for each in np.unique(number))
    return {str(classes[places[0]]): places for places in of_class}


def _work_by_kernel(
    linked: Linked, steps: Steps, class_of_kernel: NDArray[np.str_], chosen: Sequence[int]
) -> dict[str, KernelWork]:
    rows = np.flatnonzero(steps.rows(chosen))
    table = linked.kernels[rows].select(
        pl.col("name").cast(pl.String),
        pl.col("duration_ns"),
        pl.Series("step", steps.step_of_kernel[rows]),
        pl.Series("row", rows),
    )
    per_step = table.group_by("name", "step").agg(
        pl.len().alias("calls"), pl.col("duration_ns").sum(), pl.col("row").first()
    )
    medians = per_step.group_by("name").agg(
        pl.col("row").first(),
        _median(pl.col("calls"), len(chosen)).alias("calls"),
        _median(pl.col("duration_ns"), len(chosen)).alias("ns"),
    )
    return {
        name: KernelWork(str(class_of_kernel[row]), Work(calls, ns / 1e3))
        for name, row, calls, ns in medians.sort("name").iter_rows()
    }


def _median(values: pl.Expr, steps: int) -> pl.Expr:
    """Return the median over `steps` steps, of which those that are not among the values have none of the work."""
    absent = steps - pl.len().cast(pl.Int64)
    ordered = values.sort().cast(pl.Float64)
    low, high = (
        pl.when(at >= absent).then(ordered.get((at - absent).clip(0))).otherwise(0.0)
        for at in (pl.lit((steps - 1) // 2), pl.lit(steps // 2))
    )
    return (low + high) / 2


def _sequence(linked: Linked, steps: Steps, index: int) -> pl.DataFrame:
    rows = linked.kernels[np.flatnonzero(steps.rows([index]))].sort("start_ns", maintain_order=True)
    return rows.select(pl.col("name").cast(pl.String), "grid_x", "grid_y", "grid_z")
