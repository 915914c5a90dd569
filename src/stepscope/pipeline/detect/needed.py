"""What the work of a class of kernels needs of their time, as far as it is known, or what is missing to know it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope import units
from stepscope.hardware import best_known
from stepscope.pipeline.cost import Ceilings
from stepscope.pipeline.efficiency import Examination, PhaseWork
from stepscope.pipeline.ranks import collectives, message_of

if TYPE_CHECKING:
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.detect.rule import Case

WHOLE = 0.95
"""So much of the time is all of it; what is left is of kernels too small to ask for."""
LEAST_KNOWN = 0.05
"""Less of the time says nothing about the rest."""

NO_RATES = "the rates of this GPU are not known"
NO_SHAPES = "no shapes were recorded (--capture-trace, or record_shapes=True)"
NO_MODEL = "the model is not known (--model and --tp)"
NO_RANKS = "how many ranks share it is not known (--tp)"
NO_TOKENS = "how many tokens are live is not known (--context)"
NO_BYTES = "how many bytes they carry is not known (--model and --tp, or an eager run with record_shapes=True)"
NO_COST = "what its ops cost is not known"


class Needed(NamedTuple):
    """Time of a class's kernels in a step whose least time is known, and that least time."""

    all_us: float
    known_us: float
    least_us: float
    missing: str
    """What is not known of most of the rest."""
    whose: str

    @property
    def is_known(self) -> bool:
        """Whether it is known of enough to say anything."""
        return self.known_us >= LEAST_KNOWN * self.all_us > 0

    def __str__(self) -> str:
        """Say which part of the time is needed, as far as it is known."""
        if not self.is_known:
            return self.missing
        share = units.share(min(self.least_us / self.known_us, 1.0))
        if self.known_us >= WHOLE * self.all_us:
            return f"{self.whose} at least {units.time(self.least_us)} of it, {share}"
        known = units.share(self.known_us / self.all_us)
        return f"known of {known} of it, {self.whose} at least {share} of that; of the rest {self.missing}"


def needed(case: Case, kernel_class: str) -> Needed:
    """Return what the work of a class of kernels needs."""
    groups = [group for group in case.groups if group.kernel_class == kernel_class]
    if kernel_class == "collective":
        return _of_collectives(case, groups)
    ceilings = Ceilings.of(case.gpu)
    examined = Examination(PhaseWork(case.linked, case.groups, case.step, case.deployment))
    floors = [(group, examined.efficiency(group, ceilings).floor_us_per_step) for group in groups]
    unknown = [group for group, floor_us in floors if floor_us is None]
    whose = "its work needs"
    if kernel_class == "moe-gemm" and (case.step.tokens or 1) > 1:
        whose = "its work, if experts are hit at random, needs"
    return _added_up(floors, _missing(case, unknown) if unknown else "", whose)


def _of_collectives(case: Case, groups: list[WorkGroup]) -> Needed:
    """Return the best known time of collectives, of which the rest is waiting for other ranks, or a slow transfer."""
    floors: list[tuple[WorkGroup, float | None]] = []
    judged = collectives(groups, case.linked)
    for group in groups:
        message = message_of(group, case.linked, case.deployment, case.step) if group in judged else None
        best = best_known(case.gpu, message.collective, message.bytes, message.ranks) if message else None
        floors.append((group, None if best is None else min(best.us, group.us_per_call) * group.calls_per_step))
    return _added_up(floors, NO_BYTES, "for their bytes the best known time is")


def _added_up(floors: list[tuple[WorkGroup, float | None]], missing: str, whose: str) -> Needed:
    known = [(group.time_us_per_step, least_us) for group, least_us in floors if least_us is not None]
    return Needed(
        sum(group.time_us_per_step for group, _ in floors),
        sum(us for us, _ in known),
        sum(least_us for _, least_us in known),
        missing,
        whose,
    )


def _missing(case: Case, unknown: list[WorkGroup]) -> str:
    """Return what is missing to know the work of the longest of these kernels."""
    largest, deployment = unknown[0], case.deployment
    if Ceilings.of(case.gpu) is None:
        return NO_RATES
    if largest.kernel_class == "attention":
        if deployment.spec is None:
            return NO_MODEL
        if deployment.parallel is None:
            return NO_RANKS
        return NO_TOKENS if case.phase == "decode" else NO_COST
    return NO_SHAPES if largest.input_shapes is None else NO_COST
