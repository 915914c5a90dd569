"""The part of docs/accuracy.md on precision and recall, which scripts/accuracy.py writes with the rest."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY)]  # the catalogue is the tests'

from tests.catalogue import CASES  # noqa: E402
from tests.catalogue.case import Origin, Verdict, verdict  # noqa: E402
from tests.catalogue.known import KNOWN  # noqa: E402
from tests.catalogue.score import Score, precision, recall, score  # noqa: E402

from stepscope.document import Severity  # noqa: E402
from stepscope.pipeline.detect.registry import all_rules  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HEADING = "## Precision and recall"
HEADER = (
    *("rule", "cases with it, recorded", "built", "found", "missed"),
    *("false alarms", "among cases without it", "precision", "recall"),
)


def lines() -> Iterator[str]:
    """Yield the lines of the part."""
    verdicts = [verdict(case) for case in CASES]
    scores = [score(rule, verdicts) for rule in sorted(rule.id for rule in all_rules())]
    counts = Counter(case.origin for case in CASES)
    yield from (HEADING, "", *_INTRODUCTION)
    yield from (f"- {counts[origin]} {origin}" for origin in Origin)
    yield from ("", f"| {' | '.join(HEADER)} |", f"|{'---|' * len(HEADER)}")
    yield from (_row(f"`{each.rule}`", [each]) for each in scores)
    yield _row("all", scores)
    yield from ("", "Missed:", "")
    yield from _wrong([(each.rule, of) for each in scores for of in each.missed])
    yield from ("", "False alarms:", "")
    yield from _wrong([(each.rule, of) for each in scores for of in each.false_alarms])
    yield from ("", *_SLIGHT, "", *_OTHERS)
    yield from _argued(verdicts)


def _row(name: str, scores: Sequence[Score]) -> str:
    positives = sum(len(each.positives) for each in scores)
    real = sum(each.real for each in scores)
    found = sum(each.found for each in scores)
    alarms = sum(len(each.false_alarms) for each in scores)
    negatives = sum(len(each.negatives) for each in scores)
    shares = (precision(found, alarms), recall(found, positives))
    cells = (name, real, positives - real, found, positives - found, alarms, negatives)
    return f"| {' | '.join(map(str, cells))} | {' | '.join('' if s is None else f'{s:.1%}' for s in shares)} |"


def _wrong(found: Sequence[tuple[str, Verdict]]) -> Iterator[str]:
    yield from [f"- `{rule}`, {of.case.name}: {KNOWN[of.case.name, rule]}." for rule, of in found] or ["- none"]


def _argued(verdicts: Sequence[Verdict]) -> Iterator[str]:
    for of in verdicts:
        if of.case.origin in {Origin.PUBLIC, Origin.SERVER}:
            reasons = {**of.case.must, **of.case.true_too}
            yield from (
                f"- `{found.rule}`, {found.severity}, {found.share_of_step:.1%} of the step, in {of.case.name}:"
                f" {reasons[found.rule]}."
                for found in of.findings
                if found.severity is not Severity.INFO
            )


_INTRODUCTION = """\
Over all cases of which the truth is known (`tests/catalogue`), each with a label that comes from facts: what was
switched on, measured, reported, or built in. A case *with* a rule's cause must have its finding; in a case *without* it
a finding above info is a false alarm. Where a rule may speak and be right, without having to, the case counts as
neither: a step launched one by one is launch-bound whatever else it is. A slowdown that was recorded in several ways
(in a graph, its capture joined or not, eagerly, with stacks) is a case in each. The cases are

""".splitlines()
_SLIGHT = """\
What costs less than 2% of a step is found as info, and counts as found: `layout-copy` in sglang#24405 (287 µs of
20 ms), `hidden-sync` in sglang#32575 (1.97%: 33.1 of 1,678 ms), `lm-head-all-tokens` in the laboratory (0.33 of
24.6 ms), and what cost an eager step nothing.
""".splitlines()
_OTHERS = """\
## Findings on recordings of servers and of others

All that is above info in recordings that lie beside the repository (h200-decode and sglang-h200 were made for it, those
under public were published by others), and why it is true.

""".splitlines()
