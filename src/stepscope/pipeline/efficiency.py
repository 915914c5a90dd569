"""How near each kernel comes to the least time of its work, and which tensor of the model it works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.cost.ops import call_of, work_of
from stepscope.pipeline.cost.tensors import Tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.model import Deployment
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.cost import Bound, Ceilings, Work
    from stepscope.pipeline.link import Linked


@dataclass(frozen=True, slots=True)
class Efficiency:
    """A group of kernels, the work of the op that launched them, and the least time that it takes."""

    group: WorkGroup
    tensor: str | None
    """What it multiplies by or moves."""
    work: Work | None
    """Of one call of the op, of which the group may be one kernel among several; None where it is not known."""
    floor_us_per_step: float | None
    """The group's part of the op's least time: all kernels of an op are held to be as efficient."""
    bound: Bound | None

    @property
    def efficiency(self) -> float | None:
        """The least time as a fraction of the time taken."""
        if self.floor_us_per_step is None or not self.group.time_us_per_step:
            return None
        return self.floor_us_per_step / self.group.time_us_per_step


def efficiencies(
    linked: Linked,
    groups: Sequence[WorkGroup],
    deployment: Deployment,
    ceilings: Ceilings | None,
    least_share: float,
) -> list[Efficiency]:
    """Return, longest first, the groups of a phase that take at least a share of its kernels' time.

    An op such as a split-k multiplication launches several kernels. Its work is known as a whole, so that its least
    time is compared with the time of all of them.
    """
    total = sum(group.time_us_per_step for group in groups)
    chosen = [group for group in groups if group.time_us_per_step >= least_share * total > 0]
    tensors = Tensors.of(deployment, groups)
    return [_efficiency(linked, group, _siblings(group, groups), tensors, ceilings) for group in chosen]


def _siblings(group: WorkGroup, groups: Iterable[WorkGroup]) -> list[WorkGroup]:
    """Return the kernels that the same op launches on the same inputs, the group itself included, longest first."""
    if group.op is None:
        return [group]
    return [other for other in groups if (other.op, other.recorded_inputs) == (group.op, group.recorded_inputs)]


def _efficiency(
    linked: Linked,
    group: WorkGroup,
    siblings: Sequence[WorkGroup],
    tensors: Tensors,
    ceilings: Ceilings | None,
) -> Efficiency:
    call = call_of(siblings[0])
    work = work_of(call) if call else None
    tensor = tensors.name(call) if call else None
    if work is None or ceilings is None:
        return Efficiency(group, tensor, work, None, None)
    floor_us, bound = ceilings.floor(work)
    op_us = sum(sibling.time_us_per_step for sibling in siblings)
    of_op = floor_us * _op_calls_per_step(linked, siblings)
    return Efficiency(group, tensor, work, of_op * group.time_us_per_step / op_us, bound)


def _op_calls_per_step(linked: Linked, siblings: Sequence[WorkGroup]) -> float:
    """Return how often the op that launched these kernels ran in a step: the median over the steady steps."""
    rows = np.concatenate([group.rows for group in siblings])
    step = np.concatenate([group.step_of_row for group in siblings])
    ops = linked.kernels[rows].select(pl.coalesce("donor_op", "op").alias("op"))
    counted = ops.with_columns(pl.Series("step", step)).group_by("step").agg(pl.col("op").n_unique())
    calls = dict(counted.rows())
    return float(np.median([calls.get(index, 0) for index in siblings[0].steps]))
