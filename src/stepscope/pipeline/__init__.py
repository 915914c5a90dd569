"""The diagnosis: the only place that chains the stages.

load → link → steps → health → attribute → cost → whatif → detect → document. `ops` and `query` leave the chain after
cost and after attribute: they list what a trace holds, and judge nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import NotATraceError, UsageError
from stepscope.hardware import find_gpu
from stepscope.model import Deployment
from stepscope.pipeline.attribute import attribute
from stepscope.pipeline.attribute.code_owner import INTERNAL
from stepscope.pipeline.attribute.join import Donor, join, join_within
from stepscope.pipeline.detect import detect
from stepscope.pipeline.detect.rule import Case
from stepscope.pipeline.health import check_health, has_stacks, is_complete
from stepscope.pipeline.link import link
from stepscope.pipeline.load import Cache, Listener, Silent, find_traces, is_folder, load
from stepscope.pipeline.op_groups import list_ops
from stepscope.pipeline.steps import find_steps
from stepscope.pipeline.summary import Examined, summarise, together
from stepscope.pipeline.tables import check_query, run_query
from stepscope.pipeline.whatif import Timeline

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import polars as pl

    from stepscope.document import Diagnosis
    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps
    from stepscope.trace import Trace


def diagnose(  # noqa: PLR0913 -- the options of the command, all by name
    paths: Sequence[str | Path],
    *,
    model: str | None = None,
    tp: int | None = None,
    gpu: str | None = None,
    context: int | None = None,
    sources: Sequence[str | Path] = (),
    internal: Collection[str] = INTERNAL,
    capture_trace: str | Path | None = None,
    listener: Listener | None = None,
    cache: Cache | None = None,
) -> Diagnosis:
    """Diagnose trace files, each on its own.

    Args:
        paths: trace files, or folders of them.
        model: a preset's name; tells which tensor a shape is.
        tp: ranks of the tensor-parallel group.
        gpu: a GPU's name; None: the one that the trace recorded.
        context: live tokens of a request.
        sources: folders in which the recorded source files are looked for.
        internal: packages whose functions are not your code, besides the standard library; an engine's are, unless it
            is named here.
        capture_trace: a trace of the graph's capture, or of the same steps run eagerly; it tells the ops, shapes and
            stacks of the kernels that graphs replay in the traces.
        listener: told how far reading is, and what was left out.
        cache: where traces are kept, so that they need not be read again.

    Raises:
        UsageError: a path or name does not exist.
        NotATraceError: a file is no trace, or a folder holds none.
    """
    if not paths:
        raise UsageError("no trace given")
    deployment = Deployment.of(model, tp, context)
    folders = [_folder(source) for source in sources]
    find_gpu(gpu, None)  # an unknown name is said before any file is read
    parts: list[Diagnosis] = []
    listener = listener or Silent()
    donor = None
    if capture_trace is not None:
        donor = Donor.of(link(load(_one_file(capture_trace), listener=listener, cache=cache)))
    for trace in _traces(paths, listener, cache):
        examined = _examine(len(parts), trace, donor, deployment, gpu, folders, internal)
        parts.append(summarise(len(parts), examined, deployment))
    return together(parts)


def ops(
    path: str | Path,
    *,
    name: str | None = None,
    internal: Collection[str] = INTERNAL,
    listener: Listener | None = None,
    cache: Cache | None = None,
) -> pl.DataFrame:
    """Return what the ops of a trace launched, grouped; `pipeline.op_groups.list_ops` documents the columns.

    Args:
        path: one trace file, or a folder that holds one.
        name: a glob of op names; None: the innermost ops, so that every kernel is listed once.
        internal: packages whose functions are not your code, besides the standard library.
        listener: told how far reading is, and what makes totals of the trace doubtful.
        cache: where traces are kept, so that they need not be read again.

    Raises:
        UsageError: the path does not exist, or the folder holds several files that may be traces.
        NotATraceError: the file is no trace, or the folder holds none.
    """
    listener = listener or Silent()
    linked, steps = _one_trace(path, listener, cache)
    found = list_ops(linked, steps, name, internal)
    if not found.height:
        nothing = "no GPU work was recorded; a name, such as '*', lists ops without"
        if name is not None:
            nothing = f"no op, and no kernel without an op, is named {name}"
            if "*" not in name:
                nothing += f"; '*{name}*' looks inside names"
        listener.warns(f"{path}: {nothing}")
    return found


def query(path: str | Path, sql: str, *, listener: Listener | None = None, cache: Cache | None = None) -> pl.DataFrame:
    """Return the answer to a query over the tables of a trace; `pipeline.tables` documents them.

    Args:
        path: one trace file, or a folder that holds one.
        sql: a SELECT, as Polars understands it.
        listener: told how far reading is, and what makes totals of the trace doubtful.
        cache: where traces are kept, so that they need not be read again.

    Raises:
        UsageError: the query is none, or the path does not exist, or the folder holds several files.
        NotATraceError: the file is no trace, or the folder holds none.
    """
    check_query(sql)  # said before any file is read
    linked, steps = _one_trace(path, listener or Silent(), cache)
    return run_query(linked, steps, sql)


def _one_trace(path: str | Path, listener: Listener, cache: Cache | None) -> tuple[Linked, Steps]:
    file = _one_file(path)
    linked = link(load(file, listener=listener, cache=cache))
    steps = find_steps(linked)
    for warning in check_health(linked, steps, layers=None):
        if warning.spoils_totals:
            listener.warns(f"{file}: {warning.message}")
    return linked, steps


def _one_file(path: str | Path) -> str:
    files = find_traces(path)
    if len(files) > 1:
        raise UsageError(f"{path}: the folder holds {len(files)} files that may be traces; name one of them")
    return files[0]


def _traces(paths: Sequence[str | Path], listener: Listener, cache: Cache | None) -> Iterator[Trace]:
    """Load the traces one after another; what is no trace in a folder is passed over, unless nothing else is there."""
    for path in paths:
        files = find_traces(path)
        passed_over = 0
        for file in files:
            try:
                yield load(file, listener=listener, cache=cache)
            except NotATraceError as error:
                if not is_folder(path):
                    raise
                passed_over += 1
                listener.warns(f"passed over {error}")
        if passed_over == len(files):
            raise NotATraceError(f"{path}: the folder holds no trace, only other JSON files ({passed_over})")


def _examine(  # noqa: PLR0913, PLR0917 -- what the stages need
    index: int,
    trace: Trace,
    donor: Donor | None,
    deployment: Deployment,
    gpu_name: str | None,
    sources: Sequence[Path],
    internal: Collection[str],
) -> Examined:
    linked = link(trace)
    joined = join_within(linked) if donor is None else join(linked, donor)
    linked = joined.linked
    steps = find_steps(linked)
    warnings = check_health(linked, steps, deployment.spec.num_hidden_layers if deployment.spec else None)
    warnings += joined.warnings
    attributed = attribute(linked, steps)
    gpu = find_gpu(gpu_name, trace.device_name)
    timeline = Timeline(linked, steps)
    stacks, complete = has_stacks(linked), is_complete(warnings)
    cases = [
        Case(
            phase=phase,
            step_indices=indices,
            step=steps.typical(indices),
            linked=linked,
            groups=attributed.of_phase(phase),
            timeline=timeline,
            measured=timeline.replay(indices),
            deployment=deployment,
            gpu=gpu,
            sources=sources,
            internal=internal,
            has_stacks=stacks,
            complete=complete,
        )
        for phase, indices in steps.steady_phases().items()
    ]
    detected = [detect(case, index) for case in cases]
    return Examined(linked, steps, warnings, attributed, gpu, cases, detected, joined.method, complete)


def _folder(path: str | Path) -> Path:
    folder = Path(path)
    try:
        exists = folder.is_dir()
    except OSError as error:
        raise UsageError(f"--source {path}: cannot be read ({error.strerror})") from error
    if not exists:
        raise UsageError(f"--source {path}: no such folder")
    return folder
