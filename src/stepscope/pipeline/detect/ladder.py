"""What fixing one thing after another leads to: what each gains depends on what is gone before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.document import Rung, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from stepscope.document import Finding
    from stepscope.pipeline.detect.rule import Case, Cause
    from stepscope.pipeline.whatif import Change


def ladder(case: Case, trace: int, changes: Iterable[tuple[str, Change]]) -> Iterator[Rung]:
    """Yield the steps after the first change, after the first two, and so on."""
    today = case.measured.step_us
    together: Change | None = None
    for name, change in changes:
        together = change if together is None else together | change
        after = case.timeline.replay(case.step_indices, together)
        yield Rung(
            trace=trace,
            phase=case.phase,
            fixed=name,
            step_us=after.step_us,
            gpu_span_us=float(np.median(after.gpu_span_us)),
            gain_fraction=(today - after.step_us) / today if today else 0.0,
        )


def ladder_of(case: Case, trace: int, findings: Iterable[Finding], causes: Mapping[str, Cause]) -> list[Rung]:
    """Return the ladder of the findings above info, in their order; none where nothing is predicted."""
    fixed = [found.rule for found in findings if found.what_if and found.severity is not Severity.INFO]
    changes = ((rule, change) for rule in fixed if (change := causes[rule].change) is not None)
    return list(ladder(case, trace, changes))
