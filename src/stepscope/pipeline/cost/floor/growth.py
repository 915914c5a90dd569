"""How the floor grows with batch and context."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope import document
from stepscope.pipeline.cost.floor.least import least_times

if TYPE_CHECKING:
    from stepscope.pipeline.cost import Ceilings
    from stepscope.pipeline.cost.rank import Load, Rank

BATCHES = (1, 4, 16, 64, 256)
CONTEXTS = tuple(1024 << doubled for doubled in range(8))
"""1 k to 128 k tokens."""


def growth(rank: Rank, load: Load, ceilings: Ceilings) -> list[document.GrowthPoint]:
    """Return the floor at every pair of batch and context, the load's own among them, by context and then batch."""
    return [
        _point(rank, replace(load, batch=batch, context=context), ceilings)
        for context in sorted({*CONTEXTS, load.context})
        for batch in sorted({*BATCHES, load.batch})
    ]


def _point(rank: Rank, load: Load, ceilings: Ceilings) -> document.GrowthPoint:
    floor_us = sum(component.time_us for component in least_times(rank, load, ceilings))
    return document.GrowthPoint(
        batch=load.batch,
        context=load.context,
        floor_us_per_step=floor_us,
        tokens_per_s=load.batch / floor_us * 1e6,
    )
