"""The steps of a phase without the causes that were found, one by one and together."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from stepscope.pipeline.whatif import MOST_ERROR

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from stepscope.pipeline.detect.rule import Case, Cause
    from stepscope.pipeline.whatif import Change, Replayed

GONE_SHARE = 0.9
"""What another change gains this share of is gone with it."""


def can_predict(case: Case) -> bool:
    """Tell whether the replay reproduces the recorded steps, so that it may say what they would be after a change."""
    return case.replay_error <= MOST_ERROR


@dataclass(frozen=True, slots=True)
class Replays:
    """The steps without any set of the causes, each set replayed once: a replay passes over the whole trace."""

    case: Case
    changes: Mapping[str, Change]
    _known: dict[frozenset[str], Replayed] = field(default_factory=dict)

    @classmethod
    def of(cls, case: Case, causes: Mapping[str, Cause]) -> Self:
        """Return the replays without those causes that recur in every step."""
        return cls(case, {rule: cause.change for rule, cause in causes.items() if cause.change is not None})

    def without(self, *rules: str) -> Replayed:
        """Return the steps as they would run without these rules' causes; without none, as they were recorded."""
        key = frozenset(rules)
        if not key:
            return self.case.measured
        if key not in self._known:
            change = reduce(or_, (self.changes[rule] for rule in rules))
            self._known[key] = self.case.timeline.replay(self.case.step_indices, change)
        return self._known[key]

    def gain_us(self, *rules: str, after: str | None = None) -> float:
        """Return by how much the step is shorter without these causes, where one is gone already."""
        gone = () if after is None else (after,)
        return self.without(*gone).step_us - self.without(*gone, *rules).step_us

    def is_gone_with(self, part: str, whole: str) -> bool:
        """Tell whether a cause that costs something alone costs next to nothing once another one is gone."""
        alone = self.gain_us(part)
        return alone > 0 and self.gain_us(part, after=whole) <= (1 - GONE_SHARE) * alone
