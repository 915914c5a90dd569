"""Built traces taken through the stages that a test looks at."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope import diagnose, load
from stepscope.model import Deployment
from stepscope.pipeline.attribute import attribute
from stepscope.pipeline.attribute.code_owner import INTERNAL
from stepscope.pipeline.detect.rule import Case
from stepscope.pipeline.health import check_health, has_stacks, is_complete
from stepscope.pipeline.link import link
from stepscope.pipeline.steps import find_steps
from stepscope.pipeline.whatif import Profiler, Timeline

if TYPE_CHECKING:
    from stepscope.document import Diagnosis
    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps
    from tests.kineto import Kineto


def diagnosed(
    trace: Kineto | Sequence[Kineto],
    *,
    model: str | None = "glm-5",
    tp: int | None = 8,
    context: int | None = None,
    gpu: str | None = None,
    sources: Sequence[Path] = (),
) -> Diagnosis:
    """Diagnose a built trace, or those of the ranks of one run."""
    ranks = trace if isinstance(trace, Sequence) else [trace]
    with tempfile.TemporaryDirectory() as folder:
        paths = [each.save(Path(folder) / f"rank{number}.json") for number, each in enumerate(ranks)]
        return diagnose(paths, model=model, tp=tp, context=context, gpu=gpu, sources=sources)


def stepped(trace: Kineto) -> tuple[Linked, Steps]:
    """Load a built trace, link it, and find its steps."""
    with tempfile.TemporaryDirectory() as folder:
        linked = link(load(trace.save(Path(folder) / "trace.json")))
    return linked, find_steps(linked)


def case_of(trace: Kineto, deployment: Deployment | None = None) -> Case:
    """Return what a rule sees of a built trace whose steps are all of one phase."""
    linked, steps = stepped(trace)
    ((phase, indices),) = steps.steady_phases().items()
    timeline = Timeline(linked, steps)
    return Case(
        phase=phase,
        step_indices=indices,
        step=steps.typical(indices),
        steps=steps,
        linked=linked,
        groups=attribute(linked, steps).of_phase(phase),
        timeline=timeline,
        measured=timeline.measured(indices),
        replay_error=timeline.error(indices),
        profiler=Profiler.of(linked, steps),
        deployment=deployment or Deployment.of(None, None, None),
        gpu=None,
        sources=(),
        internal=INTERNAL,
        has_stacks=has_stacks(linked),
        complete=is_complete(check_health(linked, steps, layers=None)),
    )
