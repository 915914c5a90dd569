"""The diagnosis: the only place that chains the stages.

load → link → steps → health → attribute → cost → whatif → detect → document
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.hardware import find_gpu
from stepscope.model import Deployment
from stepscope.pipeline.attribute import attribute
from stepscope.pipeline.detect import detect
from stepscope.pipeline.detect.rule import Case
from stepscope.pipeline.health import check_health, has_stacks
from stepscope.pipeline.link import link
from stepscope.pipeline.load import find_traces, load
from stepscope.pipeline.steps import find_steps
from stepscope.pipeline.summary import Examined, summarise
from stepscope.pipeline.whatif import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.document import Diagnosis
    from stepscope.trace import Trace

    Progress = Callable[[str], None]


def diagnose(  # noqa: PLR0913 -- the options of the command, all by name
    paths: Sequence[str | Path],
    *,
    model: str | None = None,
    tp: int | None = None,
    gpu: str | None = None,
    context: int | None = None,
    sources: Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> Diagnosis:
    """Diagnose trace files, each on its own.

    Args:
        paths: trace files, or folders of them.
        model: a preset's name; tells which tensor a shape is.
        tp: ranks of the tensor-parallel group.
        gpu: a GPU's name; None: the one that the trace recorded.
        context: live tokens of a request.
        sources: folders in which the recorded source files are looked for.
        progress: called with a sentence before each long step.

    Raises:
        UsageError: a path or name does not exist.
        NotATraceError: a file is no trace, or a folder holds none.
    """
    deployment = Deployment.of(model, tp, context)
    folders = [_folder(source) for source in sources]
    find_gpu(gpu, None)  # an unknown name is said before any file is read
    traces = []
    for index, path in enumerate(find_traces(paths)):
        if progress:
            progress(f"reading {path}")
        traces.append(_examine(index, load(path), deployment, gpu, folders))
    return summarise(traces, deployment)


def _examine(
    index: int, trace: Trace, deployment: Deployment, gpu_name: str | None, sources: Sequence[Path]
) -> Examined:
    linked = link(trace)
    steps = find_steps(linked)
    warnings = check_health(linked, steps)
    attributed = attribute(linked, steps)
    gpu = find_gpu(gpu_name, trace.device_name)
    timeline = Timeline(linked, steps)
    cases = [
        Case(
            phase=phase,
            step_indices=indices,
            step=steps.steps[indices[0]],
            linked=linked,
            groups=attributed.of_phase(phase),
            timeline=timeline,
            measured=timeline.replay(indices),
            deployment=deployment,
            gpu=gpu,
            sources=sources,
            has_stacks=has_stacks(linked),
        )
        for phase, indices in steps.phases().items()
    ]
    detected = [detect(case, index) for case in cases]
    return Examined(linked, steps, warnings, attributed, gpu, cases, detected)


def _folder(path: str | Path) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(f"--source {path}: no such folder")
    return folder
