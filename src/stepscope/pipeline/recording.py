"""One trace examined: its diagnosis, and what a comparison asks beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from stepscope.pipeline.step_work import step_work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.document import Diagnosis
    from stepscope.pipeline.step_work import StepWork
    from stepscope.pipeline.summary import Examined
    from stepscope.pipeline.whatif import Replayed


@dataclass(frozen=True, slots=True)
class Recording:
    """A diagnosed trace."""

    diagnosis: Diagnosis
    examined: Examined

    def steps(self) -> list[StepWork]:
        """Return the work of the steps of each phase and batch size."""
        examined = self.examined
        return step_work(examined.linked, examined.steps, examined.attributed.class_of_kernel)

    def without(self, phase: str, rules: Sequence[str]) -> Replayed:
        """Return the steps of a phase as they would run without the causes that these rules found, all at once."""
        (at,) = (at for at, case in enumerate(self.examined.cases) if case.phase == phase)
        case, causes = self.examined.cases[at], self.examined.detected[at].causes
        return case.timeline.replay(case.step_indices, reduce(or_, (causes[rule].change for rule in rules)))
