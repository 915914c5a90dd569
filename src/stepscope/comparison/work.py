"""Where the difference lies: by class, by kernel, and as a way from one median step to the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.comparison.renamed import renamed
from stepscope.document import ClassDelta, KernelDelta, WaterfallDelta, WorkSide

if TYPE_CHECKING:
    from stepscope.comparison.pairs import Pair
    from stepscope.pipeline.step_work import StepWork, Work

IDLE = "idle"


def waterfall(pair: Pair) -> list[WaterfallDelta]:
    """Return the parts of the difference of the median steps, which add up to it: the greatest first, idle last."""
    before, after = pair.before.class_us, pair.after.class_us
    parts = [(name, before.get(name, 0.0), after.get(name, 0.0)) for name in sorted({*before, *after})]
    parts.sort(key=lambda part: -abs(part[2] - part[1]))
    return [
        WaterfallDelta(
            trace=pair.trace,
            phase=pair.before.phase,
            batch_size=pair.before.batch_size,
            name=name,
            before_us=before_us,
            after_us=after_us,
            delta_us=after_us - before_us,
        )
        for name, before_us, after_us in [*parts, (IDLE, pair.before.idle_us, pair.after.idle_us)]
    ]


def by_class(pair: Pair) -> list[ClassDelta]:
    """Return each class in both traces, the greatest difference first."""
    rows = []
    for name in sorted({*pair.before.classes, *pair.after.classes}):
        before = _side(pair.before, pair.before.classes.get(name))
        after = _side(pair.after, pair.after.classes.get(name))
        rows.append(
            ClassDelta(
                trace=pair.trace,
                phase=pair.before.phase,
                batch_size=pair.before.batch_size,
                kernel_class=name,
                before=before,
                after=after,
                delta_us=delta(before, after),
            )
        )
    return sorted(rows, key=lambda row: -abs(row.delta_us))


def by_kernel(pair: Pair) -> list[KernelDelta]:
    """Return each kernel in both traces, the greatest difference first."""
    other_name = renamed(pair)
    new = pair.after.kernels.keys() - pair.before.kernels.keys() - set(other_name.values())
    rows = []
    for name in sorted({*pair.before.kernels, *new}):
        left, right = pair.before.kernels.get(name), pair.after.kernels.get(other_name.get(name, name))
        known = left or right
        assert known is not None  # noqa: S101 -- the name comes from one of the two
        before = _side(pair.before, left.work if left else None)
        after = _side(pair.after, right.work if right else None)
        rows.append(
            KernelDelta(
                trace=pair.trace,
                phase=pair.before.phase,
                batch_size=pair.before.batch_size,
                kernel=name,
                renamed_to=other_name.get(name),
                kernel_class=known.kernel_class,
                before=before,
                after=after,
                delta_us=delta(before, after),
            )
        )
    return sorted(rows, key=lambda row: -abs(row.delta_us))


def delta(before: WorkSide | None, after: WorkSide | None) -> float:
    """Return the difference of time per step; work that does not run takes none."""
    return (after.time_us_per_step if after else 0.0) - (before.time_us_per_step if before else 0.0)


def _side(steps: StepWork, work: Work | None) -> WorkSide | None:
    if work is None:
        return None
    step_us = float(np.median(steps.duration_us))
    return WorkSide(
        calls_per_step=work.calls_per_step,
        time_us_per_step=work.time_us_per_step,
        share_of_step=work.time_us_per_step / step_us if step_us else 0.0,
    )
