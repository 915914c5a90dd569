"""How near each kernel comes to the least time of its work, and which tensor of the model it works on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stepscope.dtypes import item_bytes
from stepscope.pipeline.attribute.live_tokens import live_tokens
from stepscope.pipeline.cost import Bound, attention
from stepscope.pipeline.cost.ops import call_of, in_16_bits, work_of
from stepscope.pipeline.cost.rank import ACTIVATION_BYTES, Load, Rank
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


class Calls(NamedTuple):
    """Calls in a step, all of the same work."""

    per_step: float
    work: Work


@dataclass(frozen=True, slots=True)
class Worked:
    """Kernels that together do the work of some calls."""

    kernels: Sequence[WorkGroup]
    """Longest first."""
    calls: Sequence[Calls]

    @property
    def per_step(self) -> float:
        """Calls in a step."""
        return sum(call.per_step for call in self.calls)

    @property
    def work(self) -> Work:
        """Of a call; of several kinds, the mean."""
        total = sum((call.work * call.per_step for call in self.calls), start=Work(0.0))
        return total * (1 / self.per_step) if len(self.calls) > 1 else self.calls[0].work

    def floor(self, ceilings: Ceilings) -> tuple[float, Bound]:
        """Return the least time of a step's calls in µs, and what bounds most of it."""
        each = [ceilings.call_floor(call.work) for call in self.calls]
        floors = [(call.per_step * us, bound) for call, (us, bound) in zip(self.calls, each, strict=True)]
        return sum(us for us, _ in floors), max(floors)[1]


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
    examined = Examination(phase)
    return [examined.efficiency(group, ceilings) for group in chosen]


class Examination:
    """Which calls the kernels of a phase work for.

    Args:
        phase: its work.
        in_16_bits: whether calls on weights or a cache of fewer bits are to have the work that they would be in 16
            bits; then no other calls have any.
    """

    def __init__(self, phase: PhaseWork, *, in_16_bits: bool = False) -> None:
        self._of = phase
        self._in_16_bits = in_16_bits
        self._tensors = Tensors.of(phase.deployment, phase.groups)
        parallel = phase.deployment.parallel
        # with attention groups of their own, ranks exchange in groups of several sizes
        self._ranks = parallel.tp if parallel and parallel.attention_dp == 1 else None

    def efficiency(self, group: WorkGroup, ceilings: Ceilings | None) -> Efficiency:
        """Return how near a group of kernels comes to its part of the least time of its calls."""
        tensor, worked = self.tensor(group), self.worked(group)
        if worked is None or ceilings is None:
            return Efficiency(group, tensor, worked.work if worked else None, None, None)
        taken_us = sum(kernel.time_us_per_step for kernel in worked.kernels)
        floor_us, bound = worked.floor(ceilings)
        if bound is Bound.LATENCY:  # which is measured in a row of empty kernels: what ran faster is as fast as can be
            floor_us = min(floor_us, taken_us)
        part = group.time_us_per_step / taken_us if taken_us else 0.0  # what few steps have takes no time in the median
        return Efficiency(group, tensor, worked.work, floor_us * part, bound)

    def worked(self, group: WorkGroup) -> Worked | None:
        """Return the calls that a group of kernels does the work of, with the others that do; None: not known."""
        kernels = self._of_same_op(group)
        calls = self._by_op(kernels)
        if not calls:
            kernels, calls = self._by_model(group)
        return Worked(kernels, calls) if calls else None

    def tensor(self, group: WorkGroup) -> str | None:
        """Return what a group of kernels multiplies by or moves, for people; None where nothing fits."""
        call = call_of(self._of_same_op(group)[0])
        return self._tensors.name(call) if call else None

    def _by_op(self, kernels: Sequence[WorkGroup]) -> list[Calls]:
        """Return the work of the op that launched these kernels, from the shapes of its inputs."""
        call = call_of(kernels[0])
        if call is None or any(kind in kernels[0].kernel for kind in _BETWEEN_HOST_AND_DEVICE):
            return []
        work = in_16_bits(call) if self._in_16_bits else work_of(call, self._ranks)
        return [Calls(_op_calls_per_step(self._of.linked, kernels), work)] if work else []

    def _by_model(self, group: WorkGroup) -> tuple[list[WorkGroup], list[Calls]]:
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
        return kernels, [Calls(count, work) for count, work in layers]

    @cached_property
    def _by_call(self) -> dict[object, list[WorkGroup]]:
        """The kernels of each op and its inputs, longest first."""
        found: dict[object, list[WorkGroup]] = {}
        for group in self._of.groups:
            found.setdefault((group.op, group.recorded_inputs), []).append(group)
        return found

    def _of_same_op(self, group: WorkGroup) -> list[WorkGroup]:
        """Return the kernels that the same op launches on the same inputs, the group itself included, longest first."""
        return [group] if group.op is None else self._by_call[group.op, group.recorded_inputs]

    @cached_property
    def _attention(self) -> list[WorkGroup]:
        """Kernels of attention whose op does not tell their work, longest first."""
        of_class = [group for group in self._of.groups if group.kernel_class == "attention"]
        calls = [(group, call_of(self._of_same_op(group)[0])) for group in of_class]
        return [group for group, call in calls if call is None or work_of(call, self._ranks) is None]

    def _layers(self, kernel: str, *, of_index: bool) -> list[OfLayers]:
        """Return the work of a step's attention, or of its sparse index, as far as the tokens are known."""
        deployment, step = self._of.deployment, self._of.step
        spec, parallel, requests = deployment.spec, deployment.parallel, step.batch_size
        if spec is None or parallel is None or not requests:
            return []
        rank = Rank(spec, parallel, deployment.weights)
        dtype = attention.cache_dtype(kernel, deployment.kv_dtype)
        if self._in_16_bits:
            if item_bytes(dtype) >= ACTIVATION_BYTES or of_index:
                return []
            dtype = "BFloat16"
        if step.phase is Phase.PREFILL and step.tokens and step.tokens >= requests and not of_index:
            return list(attention.prefill(rank, requests, step.tokens))
        live = live_tokens(deployment, step, self._of.groups, self._tensors.slots)
        if step.phase is not Phase.DECODE or live is None:
            return []
        # a step's annotation tells the requests of one attention group
        load = Load(requests * parallel.attention_dp, live.tokens // requests, dtype)
        works = attention.index_decode if of_index else attention.decode
        return list(works(rank, load))


def _op_calls_per_step(linked: Linked, siblings: Sequence[WorkGroup]) -> float:
    """Return how often the op that launched these kernels ran in a step: the median over the steady steps."""
    rows = np.concatenate([group.rows for group in siblings])
    step = np.concatenate([group.step_of_row for group in siblings])
    ops = linked.kernels[rows].select(pl.coalesce("donor_op", "op").alias("op"))
    counted = ops.with_columns(pl.Series("step", step)).group_by("step").agg(pl.col("op").n_unique())
    calls = dict(counted.rows())
    return float(np.median([calls.get(index, 0) for index in siblings[0].steps]))
