"""Runs every rule on one phase, and says what was found, ruled out and could not be checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.document import CouldNotCheck, Finding
from stepscope.pipeline.detect.findings import findings_of
from stepscope.pipeline.detect.registry import all_rules
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Detected:
    """What the rules said about one phase."""

    findings: list[Finding]
    could_not_check: list[CouldNotCheck]
    causes: Mapping[str, Cause]
    """By rule: what each finding's steps would be without."""


def detect(case: Case, trace: int) -> Detected:
    """Run the rules that judge this phase, those that look at what the others leave behind last."""
    causes: dict[str, Cause] = {}
    unchecked: list[CouldNotCheck] = []
    for rule in all_rules():
        if case.phase not in rule.phases:
            continue
        found: Mapping[str, Cause] = dict(causes) if rule.runs_last else {}
        for said in rule.check(case, found):
            if isinstance(said, Unchecked):
                unchecked.append(_unchecked(rule, trace, said))
            else:
                causes[rule.id] = said
    return Detected(findings_of(case, trace, causes), unchecked, causes)


def _unchecked(rule: Rule, trace: int, said: Unchecked) -> CouldNotCheck:
    return CouldNotCheck(rule=rule.id, trace=trace, missing=said.missing, how_to_capture=said.how_to_capture)
