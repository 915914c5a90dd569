"""What a rule is, what it examines, and what it can say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from stepscope.pipeline.detect.explanation import control_of, fixes_of, title_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from stepscope.document import Confidence, Evidence, Fix
    from stepscope.hardware import Gpu
    from stepscope.model import Deployment
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.detect.origin import Origin
    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.ranks import Skew, Together
    from stepscope.pipeline.steps import Phase, Step, Steps
    from stepscope.pipeline.whatif import Change, Profiler, Replayed, Timeline


@dataclass(frozen=True, slots=True)
class Case:
    """One phase of one trace, with everything that is known about it."""

    phase: Phase
    step_indices: Sequence[int]
    step: Step
    """The typical step of the phase: the one of the median batch size."""
    steps: Steps
    """Those of all phases: what stands before and after one, and which were left out."""
    linked: Linked
    groups: Sequence[WorkGroup]
    """The work of the phase, longest first."""
    timeline: Timeline
    measured: Replayed
    """The steps as they were recorded."""
    replay_error: float
    """By how much the replay without a change misses them, as a fraction."""
    profiler: Profiler | None
    """What recording cost; None where that is not known for this GPU."""
    deployment: Deployment
    gpu: Gpu | None
    sources: Sequence[Path]
    """Folders in which source files are looked for."""
    internal: Collection[str]
    """Packages whose functions are not the user's code."""
    has_stacks: bool
    complete: bool
    """Whether idle time can be believed."""
    alone: bool = True
    """Whether no other rank's trace is at hand, so that what several tell is asked of this one."""

    @property
    def busy_us(self) -> float:
        """How long the GPU works in the median step."""
        return float(np.median(self.measured.busy_us))

    def unprofiled_us(self, change: Change | None = None) -> float | None:
        """Return the median step, after a change, as it would be without the profiler; None where that is not known."""
        if self.profiler is None or (taken_out := self.profiler.taken_out(change)) is None:
            return None
        return self.timeline.replay(self.step_indices, taken_out).step_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Something that costs time, and what the steps would be without it."""

    title: str
    confidence: Confidence
    notes: Sequence[str] = ()
    time_us_per_step: float
    evidence: Evidence
    change: Change | None
    """None: it does not recur in every step, so that no step is predicted without it."""
    change_at_best: Change | None = None
    """The change at its best, which the fastest predicted step is of; None: `change` is all that can be had."""
    assumption: str = ""
    """What the change takes for granted; nothing without one."""
    origin: Origin | None = None
    """Where the work comes from, which `checked` adds to the evidence, the notes and the fixes in code."""
    fixes: Sequence[Fix] | None = None
    """Those that help here; None: all of the rule's."""
    control: str = ""
    """The rule's, which `checked` adds."""
    is_idle: bool = False
    """Whether it counts idle time of the GPU, between some pieces of work, and not work."""


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A question that the trace cannot answer, and how to record one that can."""

    missing: str
    how_to_capture: str


CANNOT_BE_TOLD = "cannot be told"
"""In each reason that leaves a question open: `RuledOut.undecided` is read off it."""


@dataclass(frozen=True, slots=True)
class Excluded:
    """What a rule looked at, and why it is not the cause, or that it cannot be told."""

    time_us_per_step: float
    share_of_step: float
    reason: str


@dataclass(frozen=True, slots=True)
class RanksCase:
    """One phase of several ranks that take part in the same collectives."""

    phase: Phase
    calls: Together
    """Those of the steady steps."""
    skew: Skew
    steps_us: Sequence[float]
    """Median step of each rank in this phase; 0 where it has none."""
    case_of: Callable[[int], Case]
    """Reads a member's trace again: what a replay needs was not kept."""

    @property
    def waiting(self) -> int:
        """The member that waits most."""
        return int(self.skew.wait_us_per_step().argmax())

    @property
    def replayed(self) -> int:
        """The member whose steps are predicted: the one that waits most of those that can be read again."""
        waits = self.skew.wait_us_per_step()
        can_be = [us > 0 and rank.can_be_read_again for us, rank in zip(self.steps_us, self.calls.ranks, strict=True)]
        return int(np.where(can_be, waits, -1.0).argmax())

    @property
    def step_us(self) -> float:
        """The step of all ranks, which their collectives keep together."""
        return max(self.steps_us)

    @property
    def calls_per_step(self) -> float:
        """Collectives of the member that waits most."""
        return self.skew.calls_per_step(self.waiting)


@dataclass(frozen=True, slots=True)
class RanksCause:
    """What several ranks show, and the member whose steps are predicted without it."""

    cause: Cause
    member: int


class Check(Protocol):
    """The code of a rule."""

    def __call__(self, case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Excluded | Unchecked]:
        """Yield at most one cause, and what could not be checked; without a cause at most one reason for that.

        `found` holds, by rule, the causes of the rules that ran before; it is empty unless the rule `runs_last`.
        """


class CheckRanks(Protocol):
    """The code of a rule that looks at several ranks side by side."""

    def __call__(self, ranks: RanksCase) -> Iterator[RanksCause | Excluded | Unchecked]:
        """Yield at most one cause, and what is ruled out or could not be checked."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of waste; a file in `rules/` defines one as `RULE`, and its docstring is the explanation."""

    id: str
    explanation: str
    check: Check
    needs: tuple[str, ...]
    """What a trace must hold."""
    phases: tuple[str, ...] = ("decode", "prefill", "mixed", "unknown")
    """The phases it judges."""
    check_ranks: CheckRanks | None = None
    """How it looks at several ranks. Where they are at hand, `check` yields nothing (`Case.alone`)."""
    runs_last: bool = False
    """Whether it asks what would remain once the other causes are gone."""
    is_general: bool = False
    """Whether a rule that finds the same work to be something more special says more."""
    classes: tuple[str, ...] = ()
    """Kernel classes that it looks at; without any it looks at the host, or at steps as a whole."""

    @property
    def title(self) -> str:
        """What is wrong, in a sentence."""
        return title_of(self.explanation)

    @property
    def control(self) -> str:
        """The experiment that would disprove a finding."""
        return control_of(self.explanation)

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """What can be done about it."""
        return fixes_of(self.explanation)
