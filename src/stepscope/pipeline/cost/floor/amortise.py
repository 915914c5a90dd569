"""Fixed and batch-proportional costs, told apart by steps of several batch sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope import document
from stepscope.errors import UsageError
from stepscope.pipeline.cost.floor.waterfall import IDLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.cost.floor.measured import MeasuredSteps

    Floats = NDArray[np.float64]


def amortise(measured: Sequence[MeasuredSteps]) -> document.Amortisation:
    """Fit time = fixed + batch size × per request by least squares, for the step, each kernel class and idle time.

    Args:
        measured: steps of at least two batch sizes; one median each.

    Raises:
        UsageError: a trace does not tell the batch size, or all have the same.
    """
    if any(steps.batch_size is None for steps in measured):
        raise UsageError("--trace: one of the traces does not tell its batch size, so that no costs can be fitted")
    batch = np.array([steps.batch_size for steps in measured], dtype=np.float64)
    if np.unique(batch).size < 2:
        raise UsageError(f"--trace: all steps are of batch size {batch[0]:g}; costs are fitted over several sizes")
    names = sorted({name for steps in measured for name in steps.class_us})
    times = {name: np.array([steps.class_us.get(name, 0.0) for steps in measured]) for name in names}
    times[IDLE] = np.array([steps.idle_us for steps in measured])
    step = _line("step", batch, np.array([steps.duration_us for steps in measured]))
    parts = [_line(name, batch, us) for name, us in times.items()]
    return document.Amortisation(
        points=[
            document.BatchPoint(
                trace=document.encodable(m.trace), batch_size=int(size), steps=m.steps, duration_us=m.duration_us
            )
            for m, size in zip(measured, batch, strict=True)
        ],
        step=step,
        parts=sorted(parts, key=lambda part: -part.fixed_us),
        proportional_share=[_proportional_share(step, size) for size in batch.tolist()],
    )


def _line(name: str, batch: Floats, us: Floats) -> document.BatchCost:
    """Fit a line; with n points about it, s² = Σ residual² / (n − 2), and of the fixed part s² (1/n + x̄²/Σ(x − x̄)²)."""
    centred = batch - batch.mean()
    spread = float(centred @ centred)
    slope = float(centred @ us) / spread
    fixed = float(us.mean() - slope * batch.mean())
    residual = error = None
    if batch.size > 2:
        rest = us - fixed - slope * batch
        residual = float(np.sqrt(rest @ rest / (batch.size - 2)))
        error = residual * float(np.sqrt(1 / batch.size + batch.mean() ** 2 / spread))
    return document.BatchCost(
        name=name, fixed_us=fixed, per_request_us=slope, residual_us=residual, fixed_error_us=error
    )


def _proportional_share(step: document.BatchCost, batch: float) -> float | None:
    if step.fixed_us < 0 or step.per_request_us < 0:
        return None
    grows = step.per_request_us * batch
    return grows / (step.fixed_us + grows)
