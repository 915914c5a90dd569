"""The floor: the least time that a model's decode step can take on given hardware, and the way to what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import document
from stepscope.errors import UsageError
from stepscope.pipeline.cost.floor.amortise import amortise
from stepscope.pipeline.cost.floor.assumptions import assumptions
from stepscope.pipeline.cost.floor.growth import growth
from stepscope.pipeline.cost.floor.least import least_times
from stepscope.pipeline.cost.floor.measured import MeasuredSteps, measure_steps
from stepscope.pipeline.cost.floor.waterfall import of_steps, of_total
from stepscope.pipeline.cost.rank import Load, Rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.pipeline.cost import Ceilings

__all__ = ["Load", "MeasuredSteps", "Rank", "amortise", "measure_steps", "step_floor"]


def step_floor(  # noqa: PLR0913 -- a model, its load, a machine, and what was measured
    case: document.FloorCase,
    rank: Rank,
    load: Load,
    ceilings: Ceilings,
    *,
    measured_us: float | None = None,
    steps: Sequence[MeasuredSteps] = (),
) -> document.Floor:
    """Return the least time of a decode step on one rank.

    Args:
        case: what the floor is of, for the document.
        rank: the model as one rank holds it.
        load: what the step serves.
        ceilings: the GPU's rates.
        measured_us: what such a step was measured to take; not together with `steps`.
        steps: those that traces measured. The first of the load's batch size, or of an unknown one, are compared with
            the floor; if there are others, fixed costs are told from proportional ones by all of them.

    Raises:
        UsageError: none of the steps are of the load's batch size, or several do not tell several batch sizes.
    """
    components = list(least_times(rank, load, ceilings))
    floor_us = sum(component.time_us for component in components)
    waterfall: list[document.WaterfallRow] = []
    if steps:
        compared = _of_batch(steps, load.batch)
        measured_us, waterfall = compared.duration_us, of_steps(components, compared)
    elif measured_us is not None:
        waterfall = of_total(components, measured_us)
    return document.Floor(
        case=case,
        floor_us_per_step=floor_us,
        components=components,
        measured_us=measured_us,
        unexplained_us=None if measured_us is None else measured_us - floor_us,
        tokens_per_s=load.batch / floor_us * 1e6,
        tokens_per_s_per_stream=1e6 / floor_us,
        growth=growth(rank, load, ceilings),
        waterfall=waterfall,
        amortisation=amortise(steps) if len(steps) > 1 else None,
        assumptions=list(assumptions(rank, load, ceilings, steps)),
    )


def _of_batch(steps: Sequence[MeasuredSteps], batch: int) -> MeasuredSteps:
    for measured in steps:
        if measured.batch_size in {batch, None}:
            return measured
    sizes = ", ".join(str(measured.batch_size) for measured in steps)
    raise UsageError(f"--batch {batch}: the decode steps that were recorded are of batch size {sizes}")
