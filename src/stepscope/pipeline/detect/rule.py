"""What a rule is, what it examines, and what it can say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from stepscope.document import Confidence, Evidence, Fix
    from stepscope.hardware import Gpu
    from stepscope.model import Deployment
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.link import Linked
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
    assumption: str
    control: str
    fix: Sequence[Fix] = field(default=())


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A question that the trace cannot answer, and how to record one that can."""

    missing: str
    how_to_capture: str


class Check(Protocol):
    """The code of a rule."""

    def __call__(self, case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:
        """Yield at most one cause, and what could not be checked.

        `found` holds, by rule, the causes of the rules that ran before; it is empty unless the rule `runs_last`.
        """


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of waste; a file in `rules/` defines one as `RULE`, and its docstring is the explanation."""

    id: str
    title: str
    phases: tuple[str, ...]
    """The phases it judges."""
    needs: tuple[str, ...]
    """What a trace must hold."""
    explanation: str
    check: Check
    runs_last: bool = False
    """Whether it asks what would remain once the other causes are gone."""
    is_general: bool = False
    """Whether a rule that finds the same work to be something more special says more."""
