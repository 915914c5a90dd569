"""One trace examined: its diagnosis, and what a comparison asks beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import numpy as np

from stepscope.document import Range
from stepscope.pipeline.detect.findings import REPLAY_ERROR
from stepscope.pipeline.step_work import step_work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.document import Diagnosis
    from stepscope.pipeline.step_work import StepWork
    from stepscope.pipeline.summary import Examined


@dataclass(frozen=True, slots=True)
class Recording:
    """A diagnosed trace."""

    diagnosis: Diagnosis
    examined: Examined

    def steps(self) -> list[StepWork]:
        """Return the work of the steps of each phase and batch size."""
        examined = self.examined
        return step_work(examined.linked, examined.steps, examined.attributed.class_of_kernel)

    def without(self, phase: str, rules: Sequence[str]) -> tuple[Range, Range]:
        """Return step duration and GPU span in µs, as foretold without the causes that these rules found, all at once.

        From the fastest to the slowest step, and the replay's error.
        """
        (at,) = (at for at, case in enumerate(self.examined.cases) if case.phase == phase)
        case, causes = self.examined.cases[at], self.examined.detected[at].causes
        replayed = case.timeline.replay(case.step_indices, reduce(or_, (causes[rule].change for rule in rules)))
        return _range(replayed.duration_us), _range(replayed.gpu_span_us)


def _range(us: NDArray[np.float64]) -> Range:
    low, high = float(us.min()) * (1 - REPLAY_ERROR), float(us.max()) * (1 + REPLAY_ERROR)
    return Range(low=low, expected=float(np.median(us)), high=high)
