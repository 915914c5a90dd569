"""Two traces side by side: what differs, whether noise explains it, and whether the what-if was right.

The package is not called `compare`, because `stepscope.compare` is the function.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from stepscope.comparison import work
from stepscope.comparison.files import pair_files
from stepscope.comparison.findings import compare_findings, predicted
from stepscope.comparison.interval import difference
from stepscope.comparison.notes import notes
from stepscope.comparison.pairs import pair_steps
from stepscope.document import Comparison, FindingDeltas, SideOfSteps, Spread, StepDelta
from stepscope.errors import UsageError
from stepscope.pipeline import examine
from stepscope.pipeline.facts import Facts
from stepscope.pipeline.reader import Reader
from stepscope.pipeline.summary import together

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Unpack

    from numpy.typing import NDArray

    from stepscope.comparison.pairs import Pair
    from stepscope.pipeline.facts import Options
    from stepscope.pipeline.load import Cache, Listener
    from stepscope.pipeline.recording import Recording
    from stepscope.pipeline.step_work import StepWork

_SHOWN_KINDS = 4


def compare(
    before: str | Path,
    after: str | Path,
    *,
    listener: Listener | None = None,
    cache: Cache | None = None,
    **options: Unpack[Options],
) -> Comparison:
    """Compare the steps of two traces, phase by phase and batch size by batch size; differences are AFTER − BEFORE.

    Args:
        before: one trace file, or a folder of the traces of several ranks.
        after: the same; of folders, each rank is compared with itself.
        listener: told how far reading is, and what was left out.
        cache: where traces are kept, so that they need not be read again.
        **options: as `diagnose` takes them; they are told of both traces.

    Raises:
        UsageError: a path or name does not exist, the folders hold different ranks, or no steps of the two are alike.
        NotATraceError: a file is no trace, or a folder holds none.
    """
    facts, reader = Facts.of(**options), Reader(listener, cache)
    parts = [
        _compared(trace, *(examine(path, trace, facts, reader) for path in pair))
        for trace, pair in enumerate(pair_files(before, after, reader))
    ]
    return _together(parts)


def _compared(trace: int, first: Recording, second: Recording) -> Comparison:
    left, right = first.steps(), second.steps()
    pairs, unpaired = pair_steps(trace, left, right)
    before, after = first.diagnosis, second.diagnosis
    if not pairs:
        raise UsageError(
            f"no steps are alike in phase and batch size: {before.traces[0].path} holds {_kinds(left)},"
            f" {after.traces[0].path} {_kinds(right)}"
        )
    findings = compare_findings(trace, before, after, [pair.before.phase for pair in pairs])
    steps = [_step_delta(pair) for pair in pairs]
    return Comparison(
        before=before,
        after=after,
        notes=list(notes(before, after, pairs)),
        delta_us=steps[0].delta_us,
        steps=steps,
        unpaired=unpaired,
        waterfall=[row for pair in pairs for row in work.waterfall(pair)],
        by_class=[row for pair in pairs for row in work.by_class(pair)],
        by_kernel=[row for pair in pairs for row in work.by_kernel(pair)],
        findings=findings,
        prediction=predicted(first, pairs, findings.gone),
    )


def _together(parts: Sequence[Comparison]) -> Comparison:
    """Return one document of several pairs of traces."""
    if len(parts) == 1:
        return parts[0]
    names = [PurePath(part.before.traces[0].path).name for part in parts]
    return Comparison(
        before=together([part.before for part in parts]),
        after=together([part.after for part in parts]),
        notes=[f"{name}: {note}" for name, part in zip(names, parts, strict=True) for note in part.notes],
        delta_us=parts[0].delta_us,
        steps=[row for part in parts for row in part.steps],
        unpaired=[row for part in parts for row in part.unpaired],
        waterfall=[row for part in parts for row in part.waterfall],
        by_class=[row for part in parts for row in part.by_class],
        by_kernel=[row for part in parts for row in part.by_kernel],
        findings=FindingDeltas(
            gone=[row for part in parts for row in part.findings.gone],
            new=[row for part in parts for row in part.findings.new],
            changed=[row for part in parts for row in part.findings.changed],
            unchanged=[row for part in parts for row in part.findings.unchanged],
            cannot_tell=[row for part in parts for row in part.findings.cannot_tell],
        ),
        prediction=next((part.prediction for part in parts if part.prediction is not None), None),
    )


def _kinds(steps: Sequence[StepWork]) -> str:
    kinds = [
        f"{each.phase} steps" + (f" of batch {each.batch_size:,}" if each.batch_size is not None else "")
        for each in steps
    ]
    return ", ".join(kinds[:_SHOWN_KINDS]) + (" …" if len(kinds) > _SHOWN_KINDS else "") or "none"


def _step_delta(pair: Pair) -> StepDelta:
    steps = min(pair.before.count, pair.after.count)
    step = difference(pair.before.duration_us, pair.after.duration_us, steps=steps)
    span = difference(pair.before.gpu_span_us, pair.after.gpu_span_us, steps=steps)
    return StepDelta(
        trace=pair.trace,
        phase=pair.before.phase,
        before=_side(pair.before),
        after=_side(pair.after),
        delta_us=step.us,
        gpu_span_delta_us=span.us,
        verdict=step.verdict,
        gpu_span_verdict=span.verdict,
    )


def _side(steps: StepWork) -> SideOfSteps:
    return SideOfSteps(
        batch_size=steps.batch_size,
        tokens=steps.tokens,
        count=steps.count,
        timed=steps.duration_us.size,
        duration_us=_spread(steps.duration_us),
        gpu_span_us=_spread(steps.gpu_span_us),
    )


def _spread(values: NDArray[np.float64]) -> Spread:
    return Spread(min=float(values.min()), median=float(np.median(values)), max=float(values.max()))
