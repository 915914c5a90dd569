"""How often each rule is right: precision and recall over the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.catalogue.case import Verdict


@dataclass(frozen=True, slots=True)
class Score:
    """A rule over a set of cases.

    Cases on which it may speak without having to are neither positives nor negatives.
    """

    rule: str
    positives: tuple[Verdict, ...]
    negatives: tuple[Verdict, ...]

    @property
    def missed(self) -> tuple[Verdict, ...]:
        """Positives on which it is silent."""
        return tuple(verdict for verdict in self.positives if self.rule in verdict.missed)

    @property
    def false_alarms(self) -> tuple[Verdict, ...]:
        """Negatives on which it speaks above info."""
        return tuple(verdict for verdict in self.negatives if self.rule in verdict.false_alarms)

    @property
    def found(self) -> int:
        """Positives on which it speaks."""
        return len(self.positives) - len(self.missed)

    @property
    def real(self) -> int:
        """Positives that were recorded, not built."""
        return sum(verdict.case.origin.is_real for verdict in self.positives)


def score(rule: str, verdicts: Sequence[Verdict]) -> Score:
    """Return the score of a rule."""
    positives = tuple(verdict for verdict in verdicts if rule in verdict.case.must)
    negatives = tuple(
        verdict for verdict in verdicts if rule not in verdict.case.must and rule not in verdict.case.true_too
    )
    return Score(rule, positives, negatives)


def precision(found: int, false_alarms: int) -> float | None:
    """Return how much of what is said is true; None where nothing is said."""
    return found / (found + false_alarms) if found + false_alarms else None


def recall(found: int, positives: int) -> float | None:
    """Return how much of what is there is found; None where nothing is."""
    return found / positives if positives else None
