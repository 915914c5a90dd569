"""How near each kernel comes to the least time of its work, and which tensor of the model it works on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stepscope.pipeline.attribute.live_tokens import live_tokens
from stepscope.pipeline.cost import Bound, attention
from stepscope.pipeline.cost.ops import call_of, work_of
from stepscope.pipeline.cost.rank import Load, Rank
from stepscope.pipeline.cost.tensors import Tensors
from stepscope.pipeline.cost.work import Work
from stepscope.pipeline.steps import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.model import Deployment
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.cost import Ceilings
    from stepscope.pipeline.cost.cache import OfLayers
    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Step

_BETWEEN_HOST_AND_DEVICE = ("HtoD", "DtoH")


@dataclass(frozen=True, slots=True)
class Efficiency:
    """A group of kernels, the work that they do a part of, and the least time that it takes."""

    group: WorkGroup
    tensor: str | None
    """What it multiplies by or moves."""
    work: Work | None
    """Of one call, of which the group may be one kernel among several; None where it is not known."""
    floor_us_per_step: float | None
    """The group's part of the work's least time: all kernels of the work are held to be as efficient."""
    bound: Bound | None

    @property
    def efficiency(self) -> float | None:
        """The least time as a fraction of the time taken."""
        if self.floor_us_per_step is None or not self.group.time_us_per_step:
            return None
        return self.floor_us_per_step / self.group.time_us_per_step


class _Calls(NamedTuple):
    """Calls in a step, all of the same work."""

    per_step: float
    work: Work


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """The work of one phase, and what is known of the model that does it."""

    linked: Linked
    groups: Sequence[WorkGroup]
    """Longest first."""
    step: Step
    """A typical one."""
    deployment: Deployment


def efficiencies(phase: PhaseWork, ceilings: Ceilings | None, least_share: float) -> list[Efficiency]:
    """Return, longest first, the groups of a phase that take at least a share of its kernels' time.

    An op such as a split-k multiplication launches several kernels, and so does attention. Its work is known as a
    whole, so that its least time is compared with the time of all of them.
    """
    total = sum(group.time_us_per_step for group in phase.groups)
    chosen = [group for group in phase.groups if group.time_us_per_step >= least_share * total > 0]
    examined = _Phase(phase)
    return [examined.efficiency(group, ceilings) for group in chosen]


class _Phase:
    def __init__(self, phase: PhaseWork) -> None:
        self._of = phase
        self._tensors = Tensors.of(phase.deployment, phase.groups)
        parallel = phase.deployment.parallel
        # with attention groups of their own, ranks exchange in groups of several sizes
        self._ranks = parallel.tp if parallel and parallel.attention_dp == 1 else None

    def efficiency(self, group: WorkGroup, ceilings: Ceilings | None) -> Efficiency:
        kernels = _of_same_op(group, self._of.groups)
        call = call_of(kernels[0])
        tensor = self._tensors.name(call) if call else None
        calls = self._by_op(kernels)
        if not calls:
            kernels, calls = self._by_model(group)
        if not calls:
            return Efficiency(group, tensor, None, None, None)
        work = _mean(calls)
        if ceilings is None:
            return Efficiency(group, tensor, work, None, None)
        taken_us = sum(kernel.time_us_per_step for kernel in kernels)
        floor_us, bound = _floor(calls, ceilings, taken_us)
        return Efficiency(group, tensor, work, floor_us * group.time_us_per_step / taken_us, bound)

    def _by_op(self, kernels: Sequence[WorkGroup]) -> list[_Calls]:
        """Return the work of the op that launched these kernels, from the shapes of its inputs."""
        call = call_of(kernels[0])
        if call is None or any(kind in kernels[0].kernel for kind in _BETWEEN_HOST_AND_DEVICE):
            return []
        work = work_of(call, self._ranks)
        return [_Calls(_op_calls_per_step(self._of.linked, kernels), work)] if work else []

    def _by_model(self, group: WorkGroup) -> tuple[list[WorkGroup], list[_Calls]]:
        """Return the kernels of attention that no op tells the work of, and that work, from the model."""
        if group.kernel_class != "attention":
            return [], []
        of_index = attention.is_of_index(group.kernel)
        if of_index:
            kernels = [group] if attention.scores_index(group.kernel) else []
        else:
            kernels = [kernel for kernel in self._attention if not attention.is_of_index(kernel.kernel)]
        layers = self._layers(kernels[0].kernel, of_index=of_index) if kernels else []
        runs = sum(kernel.calls_per_step for kernel in kernels)
        if runs < sum(count for count, _ in layers):  # not of this model, or not all of its layers
            return [], []
        return kernels, [_Calls(count, work) for count, work in layers]

    @cached_property
    def _attention(self) -> list[WorkGroup]:
        """Kernels of attention whose op does not tell their work, longest first."""
        of_class = [group for group in self._of.groups if group.kernel_class == "attention"]
        return [group for group in of_class if not self._by_op(_of_same_op(group, self._of.groups))]

    def _layers(self, kernel: str, *, of_index: bool) -> list[OfLayers]:
        """Return the work of a step's attention, or of its sparse index, as far as the tokens are known."""
        deployment, step = self._of.deployment, self._of.step
        spec, parallel, requests = deployment.spec, deployment.parallel, step.batch_size
        if spec is None or parallel is None or not requests:
            return []
        rank = Rank(spec, parallel, deployment.weights)
        if step.phase is Phase.PREFILL and step.tokens and step.tokens >= requests and not of_index:
            return list(attention.prefill(rank, requests, step.tokens))
        live = live_tokens(deployment, step, self._of.groups, self._tensors.slots)
        if step.phase is not Phase.DECODE or live is None:
            return []
        dtype = attention.cache_dtype(kernel, deployment.kv_dtype)
        # a step's annotation tells the requests of one attention group
        load = Load(requests * parallel.attention_dp, live.tokens // requests, dtype)
        works = attention.index_decode if of_index else attention.decode
        return list(works(rank, load))


def _of_same_op(group: WorkGroup, groups: Sequence[WorkGroup]) -> list[WorkGroup]:
    """Return the kernels that the same op launches on the same inputs, the group itself included, longest first."""
    if group.op is None:
        return [group]
    return [other for other in groups if (other.op, other.recorded_inputs) == (group.op, group.recorded_inputs)]


def _mean(calls: Sequence[_Calls]) -> Work:
    """Return the work of a call; of several kinds, the mean."""
    total = sum((call.work * call.per_step for call in calls), start=Work(0.0))
    return total * (1 / sum(call.per_step for call in calls)) if len(calls) > 1 else calls[0].work


def _floor(calls: Sequence[_Calls], ceilings: Ceilings, taken_us: float) -> tuple[float, Bound]:
    """Return the least time of a step's calls in µs, and what bounds most of it.

    A launch's least time is measured in a row of empty kernels; what ran faster is as fast as can be.
    """
    each = [ceilings.call_floor(call.work) for call in calls]
    floors = [(call.per_step * us, bound) for call, (us, bound) in zip(calls, each, strict=True)]
    floor_us, bound = sum(us for us, _ in floors), max(floors)[1]
    return (min(floor_us, taken_us) if bound is Bound.LATENCY else floor_us), bound


def _op_calls_per_step(linked: Linked, siblings: Sequence[WorkGroup]) -> float:
    """Return how often the op that launched these kernels ran in a step: the median over the steady steps."""
    rows = np.concatenate([group.rows for group in siblings])
    step = np.concatenate([group.step_of_row for group in siblings])
    ops = linked.kernels[rows].select(pl.coalesce("donor_op", "op").alias("op"))
    counted = ops.with_columns(pl.Series("step", step)).group_by("step").agg(pl.col("op").n_unique())
    calls = dict(counted.rows())
    return float(np.median([calls.get(index, 0) for index in siblings[0].steps]))
