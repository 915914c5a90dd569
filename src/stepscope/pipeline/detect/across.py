"""Runs the rules that look at several ranks side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from stepscope import units
from stepscope.document import CouldNotCheck, Finding, RuledOut
from stepscope.pipeline.detect.checked import checked, checked_ranks
from stepscope.pipeline.detect.findings import finding_across, findings_of, in_order
from stepscope.pipeline.detect.ladder import ladder_of
from stepscope.pipeline.detect.registry import all_rules
from stepscope.pipeline.detect.rule import Case, Cause, Excluded, RanksCase, RanksCause, Rule, Unchecked
from stepscope.pipeline.load.header import rank_of
from stepscope.pipeline.ranks import Skew, align, sets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from stepscope.document import Rung
    from stepscope.pipeline.ranks import RankCalls, Together
    from stepscope.pipeline.reader import NotRead
    from stepscope.pipeline.steps import Phase

    _Again = Callable[[RankCalls, Phase], "Judged"]
    """Reads a rank's trace again, and judges a phase of it."""

_MOST_RANKS = 4096  # a damaged number must not fill the memory
NOTABLE_SHARE = 0.02
"""Collectives of a single rank that take less of every step have no finding in them."""


class Judged(NamedTuple):
    """One phase of a trace, and what its own diagnosis found in it."""

    case: Case
    causes: Mapping[str, Cause]


@dataclass(slots=True)
class Across:
    """What several ranks show together."""

    findings: list[Finding] = field(default_factory=list)
    ruled_out: list[RuledOut] = field(default_factory=list)
    could_not_check: list[CouldNotCheck] = field(default_factory=list)
    ladders: dict[tuple[int, str], list[Rung]] = field(default_factory=dict)
    """By trace and phase, in place of that trace's own: with what ranks show beside what its diagnosis found."""
    told: set[tuple[int, Phase]] = field(default_factory=set)
    """Traces and phases whose collectives a finding is about."""


def look_across(
    ranks: Sequence[RankCalls], not_read: Sequence[NotRead], again: Callable[[RankCalls], Sequence[Judged]]
) -> Across:
    """Return what the rules find in ranks side by side.

    Args:
        ranks: what was kept of each trace.
        not_read: files that are no traces: those called as a rank's are named.
        again: reads one of them again, and judges it as if it were alone.
    """
    found = Across()
    _damaged(found, not_read)
    for run in sets_of(ranks):
        if len(run) == 1:
            _alone(found, run[0], again)
            continue
        together, apart = align(run)
        for group in together:
            _side_by_side(found, group, again)
        _not_compared(found, run, apart)
    return found


def _alone(found: Across, rank: RankCalls, again: Callable[[RankCalls], Sequence[Judged]]) -> None:
    """Judge a trace that has no other ranks beside it as one that was given alone."""
    if not rank.can_be_read_again or all(rank.share(phase) < NOTABLE_SHARE for phase in rank.steady):
        return
    for case, causes in again(rank):
        for rule in (rule for rule in all_rules() if rule.check_ranks and case.phase in rule.phases):
            for said in checked(rule, case, causes):
                if isinstance(said, Unchecked):
                    found.could_not_check.append(_unchecked(rule, rank.trace, said))
                elif isinstance(said, Cause):
                    found.findings += findings_of(case, rank.trace, {rule.id: said})
                    found.told.add((rank.trace, case.phase))


def _side_by_side(found: Across, group: Together, again: Callable[[RankCalls], Sequence[Judged]]) -> None:
    read: dict[int, dict[Phase, Judged]] = {}

    def judged(rank: RankCalls, phase: Phase) -> Judged:
        if rank.trace not in read:
            read.clear()  # so that one trace is held at a time
            read[rank.trace] = {each.case.phase: each for each in again(rank)}
        return read[rank.trace][phase]

    for phase in group.ranks[0].steady:
        calls = group.of_phase(phase)
        step_us = [rank.step_us.get(phase, 0.0) for rank in calls.ranks]
        again_at_hand = [rank.can_be_read_again and us > 0 for rank, us in zip(calls.ranks, step_us, strict=True)]
        if not any(again_at_hand):
            continue
        ranks = RanksCase(phase, calls, Skew.of(calls), step_us, partial(_case_of, judged, phase, calls.ranks))
        causes: dict[int, dict[str, Cause]] = {}
        for rule in (rule for rule in all_rules() if phase in rule.phases):
            for said in _take(found, rule, ranks, judged):
                causes.setdefault(said.member, {})[rule.id] = said.cause
        for member, of_ranks in causes.items():
            case, own = judged(calls.ranks[member], phase)
            _climb(found, case, calls.ranks[member].trace, {**own, **of_ranks})


def _climb(found: Across, case: Case, trace: int, causes: Mapping[str, Cause]) -> None:
    """Keep the ladder of one rank's steps, over what its own diagnosis and all ranks show."""
    findings = in_order(findings_of(case, trace, causes))
    found.ladders[trace, case.phase] = ladder_of(case, trace, findings, causes)


def _case_of(judged: _Again, phase: Phase, ranks: Sequence[RankCalls], member: int) -> Case:
    return judged(ranks[member], phase).case


def _take(found: Across, rule: Rule, ranks: RanksCase, judged: _Again) -> Iterator[RanksCause]:
    """Keep what a rule says of several ranks, and yield its causes."""
    for said in checked_ranks(rule, ranks):
        if isinstance(said, RanksCause):
            case, causes = judged(ranks.calls.ranks[said.member], ranks.phase)
            found.findings.append(finding_across(case, rule.id, said.cause, causes))
            found.told |= {(rank.trace, ranks.phase) for rank in ranks.calls.ranks}
            yield said
        elif isinstance(said, Excluded):
            found.ruled_out.append(
                RuledOut(
                    trace=None,
                    phase=ranks.phase,
                    hypothesis=rule.id.replace("-", " "),
                    time_us_per_step=said.time_us_per_step,
                    share_of_step=said.share_of_step,
                    reason=said.reason,
                )
            )
        else:
            found.could_not_check.append(_unchecked(rule, None, said))


def _damaged(found: Across, not_read: Sequence[NotRead]) -> None:
    skew = next(rule for rule in all_rules() if rule.id == "rank-skew")
    for path, why in not_read:
        if (rank := rank_of({}, PurePath(path).name)) is not None:
            what = f"rank {rank}, which is left out: {why}"
            found.could_not_check.append(_unchecked(skew, None, Unchecked(what, "record this rank again")))


def _not_compared(found: Across, run: Sequence[RankCalls], apart: Sequence[RankCalls]) -> None:
    """Name the ranks of a run that are missing, and those whose collectives are no other rank's."""
    if all(rank.share(phase) < NOTABLE_SHARE for rank in run for phase in rank.steady):
        return
    skew = next(rule for rule in all_rules() if rule.id == "rank-skew")
    given = {rank.rank for rank in run}
    of_run = max((rank.world_size or 0 for rank in run), default=0)
    missing = [rank for rank in range(min(of_run, _MOST_RANKS)) if rank not in given]
    if missing:
        what = (
            f"{_ranks(missing)} of the run's {of_run}: no trace of {'it' if len(missing) == 1 else 'them'} is at hand"
        )
        found.could_not_check.append(_unchecked(skew, None, Unchecked(what, "give the traces of all ranks")))
    lonely = [rank.rank for rank in apart if rank.calls.height]
    if lonely:
        what = f"{_ranks(lonely)}: no collectives end together with those of another rank"
        how = "give traces of one run, recorded at the same time"
        found.could_not_check.append(_unchecked(skew, None, Unchecked(what, how)))


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'' if len(numbers) == 1 else 's'} {units.ranges(sorted(numbers))}"


def _unchecked(rule: Rule, trace: int | None, said: Unchecked) -> CouldNotCheck:
    return CouldNotCheck(rule=rule.id, trace=trace, missing=said.missing, how_to_capture=said.how_to_capture)
