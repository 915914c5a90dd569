"""Two traces side by side: what differs, whether noise explains it, and whether the what-if was right.

The package is not called `compare`, because `stepscope.compare` is the function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.comparison import work
from stepscope.comparison.findings import compare_findings, predicted
from stepscope.comparison.interval import difference
from stepscope.comparison.notes import notes
from stepscope.comparison.pairs import pair_steps
from stepscope.document import Comparison, SideOfSteps, Spread, StepDelta
from stepscope.errors import UsageError
from stepscope.pipeline import examine
from stepscope.pipeline.attribute.code_owner import INTERNAL

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from stepscope.comparison.pairs import Pair
    from stepscope.pipeline.load import Cache, Listener
    from stepscope.pipeline.step_work import StepWork

_SHOWN_KINDS = 4


def compare(  # noqa: PLR0913 -- the options of the command, all by name
    before: str | Path,
    after: str | Path,
    *,
    model: str | None = None,
    server_info: str | Path | None = None,
    tp: int | None = None,
    ep: int | None = None,
    dp: int | None = None,
    gpu: str | None = None,
    context: int | None = None,
    sources: Sequence[str | Path] = (),
    internal: Collection[str] = INTERNAL,
    listener: Listener | None = None,
    cache: Cache | None = None,
) -> Comparison:
    """Compare the steps of two traces, phase by phase and batch size by batch size; differences are AFTER − BEFORE.

    Args:
        before: one trace file, or a folder that holds one.
        after: the same.
        model: a preset's name, or a Hugging Face `config.json` or its folder; like the rest it is told of both traces.
        server_info: a file with what the server tells of itself, for what the other arguments do not.
        tp: ranks of the tensor-parallel group.
        ep: ranks, of those, that the experts are shared out over.
        dp: groups of those ranks that attend to requests of their own.
        gpu: a GPU's name; None: the one that each trace recorded.
        context: live tokens of a request.
        sources: folders in which the recorded source files are looked for.
        internal: packages whose functions are not your code, besides the standard library.
        listener: told how far reading is, and what was left out.
        cache: where traces are kept, so that they need not be read again.

    Raises:
        UsageError: a path or name does not exist, a folder holds several traces, or no steps of the two are alike.
        NotATraceError: a file is no trace, or a folder holds none.
    """
    first, second = (
        examine(
            path,
            model=model,
            server_info=server_info,
            tp=tp,
            ep=ep,
            dp=dp,
            gpu=gpu,
            context=context,
            sources=sources,
            internal=internal,
            listener=listener,
            cache=cache,
        )
        for path in (before, after)
    )
    left, right = first.steps(), second.steps()
    pairs, unpaired = pair_steps(left, right)
    if not pairs:
        raise UsageError(
            f"no steps are alike in phase and batch size: {before} holds {_kinds(left)}, {after} {_kinds(right)}"
        )
    found = compare_findings(first.diagnosis, second.diagnosis, [pair.before.phase for pair in pairs])
    steps = [_step_delta(pair) for pair in pairs]
    return Comparison(
        before=first.diagnosis,
        after=second.diagnosis,
        notes=list(notes(first.diagnosis, second.diagnosis, pairs)),
        delta_us=steps[0].delta_us,
        steps=steps,
        unpaired=unpaired,
        waterfall=[row for pair in pairs for row in work.waterfall(pair)],
        by_class=[row for pair in pairs for row in work.by_class(pair)],
        by_kernel=[row for pair in pairs for row in work.by_kernel(pair)],
        findings=found,
        prediction=predicted(first, pairs[0], found.gone),
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
