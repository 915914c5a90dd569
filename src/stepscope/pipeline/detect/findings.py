"""Causes to findings: what each would gain alone, which others hide it, how much it matters, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from stepscope.document import Confidence, Finding, Range, Severity, WhatIf
from stepscope.pipeline.detect import by_batch
from stepscope.pipeline.detect.replays import Replays, can_predict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from stepscope.pipeline.detect.rule import Case, Cause

CRITICAL_GAIN = 0.30
MAJOR_GAIN = 0.10
MINOR_GAIN = 0.02
REPLAY_ERROR = 0.10
"""How far the replay may miss: on the recorded pairs with and without the pool cast it misses by 1.4% and 8.7%."""
_BY_SHARE = "Its gain is not predicted: the replay does not reproduce the steps. It is judged by its time alone."
RANGE = "from the fastest to the slowest step, and 10% for the replay's error"
"""How wide a prediction is, for people."""
_RANKS_ALIKE = "; the other ranks change alike, so that collectives take what they took"
HIDING_GAIN = 0.05
"""A cause hides another if the other gains at least this much more of the step once it is gone."""


def findings_of(case: Case, trace: int | None, causes: Mapping[str, Cause]) -> list[Finding]:
    """Return the findings of a phase, in the order of the causes."""
    replays = Replays.of(case, causes) if can_predict(case) else None
    return [_finding(case, trace, rule, cause, replays) for rule, cause in causes.items()]


def finding_across(case: Case, rule: str, cause: Cause, causes: Mapping[str, Cause]) -> Finding:
    """Return the finding of a cause across ranks: predicted for one rank, beside the causes found in its trace."""
    together = {**causes, rule: cause}
    return _finding(case, None, rule, cause, Replays.of(case, together) if can_predict(case) else None)


def in_order(findings: list[Finding]) -> list[Finding]:
    """Sort by the larger gain; those without a prediction come after, by share."""
    return sorted(
        findings, key=lambda f: (f.what_if is None, -(_larger_gain(f.what_if) if f.what_if else f.share_of_step))
    )


def severity_of_gain(gain: float) -> Severity:
    """Return the severity of a gain as a fraction of the step."""
    if gain >= CRITICAL_GAIN:
        return Severity.CRITICAL
    if gain >= MAJOR_GAIN:
        return Severity.MAJOR
    return Severity.MINOR if gain >= MINOR_GAIN else Severity.INFO


def _severity_of_share(share: float) -> Severity:
    """Return the severity of what has no prediction: never critical."""
    severity = severity_of_gain(share)
    return Severity.MAJOR if severity is Severity.CRITICAL else severity


def _larger_gain(what_if: WhatIf) -> float:
    return max(what_if.gain_fraction, what_if.gain_fraction_others_fixed)


def _finding(case: Case, trace: int | None, rule: str, cause: Cause, replays: Replays | None) -> Finding:
    what_if = _what_if(case, rule, cause, replays) if replays is not None and cause.change is not None else None
    share = case.measured.share(cause.time_us_per_step)
    return Finding(
        rule=rule,
        trace=trace,
        phase=case.phase,
        severity=_severity_of_share(share) if what_if is None else severity_of_gain(_larger_gain(what_if)),
        confidence=Confidence.LOW if replays is None else cause.confidence,
        title=cause.title,
        notes=[*cause.notes, *([_BY_SHARE] if replays is None else [])],
        time_us_per_step=cause.time_us_per_step,
        share_of_step=share,
        evidence=replace(cause.evidence, by_batch=by_batch.within(case, cause)),
        what_if=what_if,
        control=cause.control,
        fix=[replace(fix, expected_step_us=what_if.step_us.expected if what_if else None) for fix in cause.fixes or ()],
    )


def _what_if(case: Case, rule: str, cause: Cause, replays: Replays) -> WhatIf:
    today = case.measured.step_us
    alone = replays.without(rule)
    gain = today - alone.step_us
    hiding = [
        other
        for other in replays.changes
        if other != rule
        and replays.without(other).step_us - replays.without(other, rule).step_us >= gain + HIDING_GAIN * today
    ]
    together = replays.without(*hiding, rule)
    gain_then = replays.without(*hiding).step_us - together.step_us
    step_us = predicted_range(case.measured.duration_us, alone.duration_us)
    gpu_span_us = predicted_range(case.measured.gpu_span_us, alone.gpu_span_us)
    if cause.change_at_best is not None:
        best = case.timeline.replay(case.step_indices, cause.change_at_best)
        step_us = replace(step_us, low=min(best.step_us, step_us.expected))
        gpu_span_us = replace(gpu_span_us, low=min(float(np.median(best.gpu_span_us)), gpu_span_us.expected))
    return WhatIf(
        step_us=step_us,
        gpu_span_us=gpu_span_us,
        unprofiled_step_us=case.unprofiled_us(cause.change),
        gain_fraction=case.measured.share(max(gain, 0.0)),
        gain_fraction_others_fixed=case.measured.share(max(gain_then, 0.0)),
        step_us_others_fixed=together.step_us,
        hidden_by=hiding,
        assumption=f"{cause.assumption}; {RANGE}{_RANKS_ALIKE if _lasts_with_ranks(case, cause) else ''}",
    )


def _lasts_with_ranks(case: Case, cause: Cause) -> bool:
    """Tell whether collectives run that the change says nothing of."""
    touched = cause.change.touched if cause.change is not None else None
    return any(
        group.kernel_class == "collective" and not (touched is not None and touched[group.rows].any())
        for group in case.groups
    )


def predicted_range(measured: NDArray[np.float64], predicted: NDArray[np.float64]) -> Range:
    """Return the fastest, median and slowest predicted step, widened by the replay's error but not beyond today's."""
    expected = float(np.median(predicted))
    error = min(REPLAY_ERROR * expected, max(float(np.median(measured)) - expected, 0.0))
    slowest = float(predicted.max())
    high = max(slowest, min(slowest + error, float(measured.max())))
    return Range(low=max(float(predicted.min()) - error, 0.0), expected=expected, high=high)
