"""Where each kernel of a phase stands: in which step and group, and from when to when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.trace import intervals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.detect.rule import Case

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Placement:
    """The kernels of a phase's steady steps; all arrays have the shape [kernels] of the trace."""

    groups: Sequence[WorkGroup]
    steps: Sequence[int]
    step: Ints
    """Index of the step that each belongs to; -1: to none of the phase's steady steps."""
    group: Ints
    """Index into `groups`; -1 where there is no step."""
    start: Ints
    """In ns."""
    end: Ints

    @classmethod
    def of(cls, case: Case) -> Self:
        """Place the work of a phase."""
        count = case.linked.kernels.height
        step, group = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
        rows = np.concatenate([work.rows for work in case.groups])
        of_step = np.concatenate([work.step_of_row for work in case.groups])
        of_group = np.repeat(np.arange(len(case.groups)), [work.rows.size for work in case.groups])
        steady = np.isin(of_step, case.step_indices)
        step[rows[steady]], group[rows[steady]] = of_step[steady], of_group[steady]
        start = case.linked.kernels["start_ns"].to_numpy()
        return cls(
            case.groups, case.step_indices, step, group, start, start + case.linked.kernels["duration_ns"].to_numpy()
        )

    def where(self, holds: Callable[[WorkGroup], bool]) -> Bools:
        """Return the kernels whose group is of some kind."""
        flags = np.array([*map(holds, self.groups), False], dtype=np.bool_)  # the last is that of no group
        return flags[self.group]

    def parts_of(self, rows: Bools) -> list[WorkGroup]:
        """Return what is among these kernels of each group that has any of them: those with the most time first."""
        parts = [self.groups[index].only(rows) for index in np.unique(self.group[rows])]
        return sorted(parts, key=lambda part: (-part.time_us_per_step, -part.us.sum()))

    def whole(self, part: WorkGroup) -> WorkGroup:
        """Return the group that a part is of."""
        return self.groups[int(self.group[part.rows[0]])]

    def covered_us_per_step(self, rows: Bools) -> float:
        """Return the µs of a step that some of these kernels cover: median over the steps."""
        covered = intervals.covered_by_group(self.start[rows], self.end[rows], self.step[rows], max(self.steps) + 1)
        return float(np.median(covered[list(self.steps)])) / 1e3

    def calls_per_step(self, rows: Bools) -> float:
        """Return how many of these kernels run in a step: median over the steps."""
        return float(np.median(np.bincount(self.step[rows], minlength=max(self.steps) + 1)[list(self.steps)]))
