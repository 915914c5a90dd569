"""Runs every rule on one phase, and says what was found, ruled out and could not be checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope import units
from stepscope.document import CouldNotCheck, Finding
from stepscope.pipeline.detect.checked import checked
from stepscope.pipeline.detect.findings import findings_of, in_order
from stepscope.pipeline.detect.ladder import ladder_of
from stepscope.pipeline.detect.overlap import explained
from stepscope.pipeline.detect.registry import all_rules
from stepscope.pipeline.detect.replays import can_predict
from stepscope.pipeline.detect.rule import Case, Cause, Excluded, Rule, Unchecked
from stepscope.pipeline.whatif import MOST_ERROR

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.document import Rung


@dataclass(frozen=True, slots=True)
class Detected:
    """What the rules said about one phase."""

    findings: list[Finding]
    could_not_check: list[CouldNotCheck]
    ladder: list[Rung]
    causes: Mapping[str, Cause]
    """What the findings are about, by rule."""
    silent: Mapping[str, Excluded | None]
    """The rules that found nothing and asked nothing, and what those that told say of what they looked at."""


def detect(case: Case, trace: int) -> Detected:
    """Run the rules that judge this phase, those that look at what the others leave behind last."""
    causes: dict[str, Cause] = {}
    unchecked: list[CouldNotCheck] = []
    silent: dict[str, Excluded | None] = {}
    for rule in all_rules():
        if case.phase not in rule.phases:
            continue
        found: Mapping[str, Cause] = dict(causes) if rule.runs_last else {}
        said = list(checked(rule, case, found))
        for each in said:
            if isinstance(each, Cause):
                causes[rule.id] = each
            elif isinstance(each, Unchecked):
                unchecked.append(_unchecked(rule, trace, each))
        excluded = [each for each in said if isinstance(each, Excluded)]
        if len(excluded) == len(said):
            silent[rule.id] = excluded[0] if excluded else None
    causes = explained(case, causes, {rule.id for rule in all_rules() if rule.is_general})
    if not can_predict(case):
        unchecked += [_unchecked(rule, trace, _not_reproduced(case)) for rule in all_rules() if rule.id in causes]
    findings = in_order(findings_of(case, trace, causes))
    return Detected(findings, unchecked, ladder_of(case, trace, findings, causes), causes, silent)


def _not_reproduced(case: Case) -> Unchecked:
    missed = f"the replay misses the recorded steps by {units.share(case.replay_error)}"
    return Unchecked(
        f"what the step would be without it: {missed}, more than {units.share(MOST_ERROR)}",
        "record again, with the host's activity and more steps; or compare with a run without it",
    )


def _unchecked(rule: Rule, trace: int, said: Unchecked) -> CouldNotCheck:
    return CouldNotCheck(rule=rule.id, trace=trace, missing=said.missing, how_to_capture=said.how_to_capture)
