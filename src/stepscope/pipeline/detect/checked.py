"""What a rule's check says, and to each cause what the rule's explanation and the cause's origin add."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec.structs import replace as with_fields

from stepscope.pipeline.detect.evidence import with_origin
from stepscope.pipeline.detect.rule import Cause, RanksCause

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.pipeline.detect.rule import Case, Excluded, RanksCase, Rule, Unchecked


def checked(rule: Rule, case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Excluded | Unchecked]:
    """Yield what a rule says of a phase."""
    for said in rule.check(case, found):
        yield _told(rule, said) if isinstance(said, Cause) else said


def checked_ranks(rule: Rule, ranks: RanksCase) -> Iterator[RanksCause | Excluded | Unchecked]:
    """Yield what a rule says of several ranks; nothing, if it does not look at them."""
    for said in rule.check_ranks(ranks) if rule.check_ranks else ():
        yield RanksCause(_told(rule, said.cause), said.member) if isinstance(said, RanksCause) else said


def _told(rule: Rule, cause: Cause) -> Cause:
    fixes = rule.fixes if cause.fixes is None else cause.fixes
    told = replace(cause, control=rule.control, fixes=fixes)
    if (origin := cause.origin) is None:
        return told
    at_origin = [with_fields(fix, where=origin.where) if fix.kind == "code" else fix for fix in fixes]
    evidence, notes = with_origin(cause.evidence, origin), [*cause.notes, *origin.notes]
    return replace(told, fixes=at_origin, evidence=evidence, notes=notes)
