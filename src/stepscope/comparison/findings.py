"""Findings that are gone, new or changed, and what BEFORE foretold of those that are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.comparison.work import delta
from stepscope.document import FindingDelta, FindingDeltas, Foretold, PredictionResult, WorkSide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.comparison.pairs import Pair
    from stepscope.document import Diagnosis, Finding, Range
    from stepscope.pipeline.recording import Recording

    Floats = NDArray[np.float64]
    Key = tuple[str, str]

CHANGED_SHARE = 0.01
"""A cause whose time differs by less than this share of BEFORE's step is the same."""


def compare_findings(trace: int, before: Diagnosis, after: Diagnosis, phases: Sequence[str]) -> FindingDeltas:
    """Sort the findings of these phases, which both traces have, by what became of them."""
    left, right = _by_key(before, phases), _by_key(after, phases)
    unchecked_before, unchecked_after = _unchecked(before), _unchecked(after)
    found = FindingDeltas(gone=[], new=[], changed=[], unchanged=[], cannot_tell=[])
    for key in [*left, *(key for key in right if key not in left)]:
        old, new = left.get(key), right.get(key)
        row = _row(trace, old, new)
        if old is not None and new is not None:
            step_us = old.time_us_per_step / old.share_of_step if old.share_of_step else 0.0
            differs = old.severity != new.severity or abs(row.delta_us) >= CHANGED_SHARE * step_us
            (found.changed if differs else found.unchanged).append(row)
        elif key[0] in (unchecked_after if new is None else unchecked_before):
            found.cannot_tell.append(row)
        else:
            (found.gone if new is None else found.new).append(row)
    return found


def predicted(recording: Recording, pairs: Sequence[Pair], gone: Sequence[FindingDelta]) -> PredictionResult | None:
    """Hold BEFORE's what-if, without all of the causes that are gone, against what AFTER measured.

    It was made of the steps of the typical batch size. None where no finding is gone that has a what-if.
    """
    typical = {(steps.phase, steps.batch_size) for steps in recording.diagnosis.steps}
    pair = next((pair for pair in pairs if (pair.before.phase, pair.before.batch_size) in typical), None)
    if pair is None:
        return None
    phase = pair.before.phase
    rules = {row.rule for row in gone if row.phase == phase}
    known = {f.rule: f.what_if for f in recording.diagnosis.findings if f.phase == phase and f.what_if is not None}
    foretold = [rule for rule in known if rule in rules]
    if not foretold:
        return None
    if len(foretold) == 1:
        what_if = known[foretold[0]]
        step, span, assumption = what_if.step_us, what_if.gpu_span_us, what_if.assumption
    else:
        step, span = recording.without(phase, foretold)
        each = "; ".join(dict.fromkeys(known[rule].assumption for rule in foretold))
        assumption = f"all removed at once; of each: {each}"
    return PredictionResult(
        trace=pair.trace,
        rules=foretold,
        phase=phase,
        batch_size=pair.before.batch_size,
        step=_foretold(pair.before.duration_us, step, pair.after.duration_us),
        gpu_span=_foretold(pair.before.gpu_span_us, span, pair.after.gpu_span_us),
        assumption=assumption,
    )


def _foretold(before: Floats, expected: Range, after: Floats) -> Foretold:
    measured = float(np.median(after))
    return Foretold(
        before_us=float(np.median(before)),
        predicted_us=expected,
        measured_us=measured,
        unexplained_us=measured - expected.expected,
        is_miss=not expected.low <= measured <= expected.high,
    )


def _by_key(diagnosis: Diagnosis, phases: Sequence[str]) -> dict[Key, Finding]:
    return {(f.rule, f.phase): f for f in diagnosis.findings if f.phase in phases}


def _unchecked(diagnosis: Diagnosis) -> set[str]:
    return {row.rule for row in diagnosis.could_not_check}


def _row(trace: int, old: Finding | None, new: Finding | None) -> FindingDelta:
    known = old or new
    assert known is not None  # noqa: S101 -- one of the two was found
    before, after = _side(old), _side(new)
    return FindingDelta(
        trace=trace,
        rule=known.rule,
        phase=known.phase,
        title=known.title,
        severity_before=old.severity if old else None,
        severity_after=new.severity if new else None,
        before=before,
        after=after,
        delta_us=delta(before, after),
    )


def _side(finding: Finding | None) -> WorkSide | None:
    if finding is None:
        return None
    return WorkSide(
        calls_per_step=finding.evidence.calls_per_step,
        time_us_per_step=finding.time_us_per_step,
        share_of_step=finding.share_of_step,
    )
