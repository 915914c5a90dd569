"""The least time of each component of a decode step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import document
from stepscope.pipeline.cost.floor.collectives import exchanges
from stepscope.pipeline.cost.floor.components import parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.pipeline.cost import Ceilings
    from stepscope.pipeline.cost.rank import Load, Rank

COLLECTIVES = "collectives"


def least_times(rank: Rank, load: Load, ceilings: Ceilings) -> Iterator[document.FloorComponent]:
    """Yield the components of a step on a rank of a GPU with such ceilings."""
    for name, works in parts(rank, load):
        time_us, bound = ceilings.floor(*works)
        yield document.FloorComponent(
            name=name,
            time_us=time_us,
            bytes=sum(work.bytes for work in works),
            flops=sum(work.flops for work in works),
            bound=bound,
        )
    if sent := list(exchanges(rank, load)):
        times = [ceilings.exchange(exchange.times, exchange.bytes) for exchange in sent]
        yield document.FloorComponent(
            name=COLLECTIVES,
            time_us=sum(time_us for time_us, _ in times),
            bytes=sum(exchange.times * exchange.bytes for exchange in sent),
            flops=0.0,
            bound=max(times)[1],
        )
