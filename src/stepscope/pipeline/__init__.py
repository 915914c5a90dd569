"""The diagnosis: the only place that chains the stages.

load → link → steps → health → attribute → cost → whatif → detect → document. `ops` and `query` leave the chain after
cost and after attribute: they list what a trace holds, and judge nothing.
"""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stepscope.document import FloorCase, encodable
from stepscope.errors import NotATraceError, UsageError
from stepscope.hardware import find_gpu
from stepscope.model import Deployment
from stepscope.pipeline.attribute import attribute, classes
from stepscope.pipeline.attribute.code_owner import INTERNAL
from stepscope.pipeline.attribute.join import Donor, join, join_within
from stepscope.pipeline.cost import Ceilings
from stepscope.pipeline.cost.floor import Load, MeasuredSteps, Rank, measure_steps, step_floor
from stepscope.pipeline.cost.infer import settle
from stepscope.pipeline.detect import detect
from stepscope.pipeline.detect.rule import Case
from stepscope.pipeline.health import check_health, has_stacks, is_complete
from stepscope.pipeline.link import link
from stepscope.pipeline.load import Cache, Listener, Silent, find_traces, is_folder, load
from stepscope.pipeline.op_groups import list_ops
from stepscope.pipeline.predict import check_changes, predict
from stepscope.pipeline.recording import Recording
from stepscope.pipeline.steps import find_steps
from stepscope.pipeline.summary import Examined, summarise, together
from stepscope.pipeline.tables import check_query, run_query
from stepscope.pipeline.whatif import Profiler, Timeline

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import polars as pl

    from stepscope.document import Diagnosis, Floor, Prediction
    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps
    from stepscope.trace import Trace

_KV_NAMES = {"BFloat16": "bf16", "Float8_e4m3fn": "fp8"}
"""What the command line calls a type of the KV cache."""


def diagnose(  # noqa: PLR0913 -- the options of the command, all by name
    paths: Sequence[str | Path],
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
    capture_trace: str | Path | None = None,
    listener: Listener | None = None,
    cache: Cache | None = None,
) -> Diagnosis:
    """Diagnose trace files, each on its own.

    Args:
        paths: trace files, or folders of them.
        model: a preset's name, or a Hugging Face `config.json` or its folder; tells which tensor a shape is.
        server_info: a file with what the server tells of itself, for what the other arguments do not.
        tp: ranks of the tensor-parallel group.
        ep: ranks, of those, that the experts are shared out over.
        dp: groups of those ranks that attend to requests of their own.
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
    deployment = Deployment.of(model, tp, context, ep=ep, dp=dp, server_info=server_info)
    folders = [_folder(source) for source in sources]
    find_gpu(gpu, None)  # an unknown name is said before any file is read
    parts: list[Diagnosis] = []
    listener = listener or Silent()
    donor = _donor(capture_trace, listener, cache)
    for trace in _traces(paths, listener, cache):
        examined = _examine(len(parts), trace, donor, deployment, gpu, folders, internal)
        parts.append(summarise(len(parts), examined))
    return together(parts)


def examine(  # noqa: PLR0913 -- the options of the command, all by name
    path: str | Path,
    index: int = 0,
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
) -> Recording:
    """Diagnose one trace, and keep what a comparison asks beyond the diagnosis.

    Args:
        path: one trace file, or a folder that holds one.
        index: its place among the traces that are compared.
        model: a preset's name, or a Hugging Face `config.json` or its folder.
        server_info: a file with what the server tells of itself, for what the other arguments do not.
        tp: ranks of the tensor-parallel group.
        ep: ranks, of those, that the experts are shared out over.
        dp: groups of those ranks that attend to requests of their own.
        gpu: a GPU's name; None: the one that the trace recorded.
        context: live tokens of a request.
        sources: folders in which the recorded source files are looked for.
        internal: packages whose functions are not your code, besides the standard library.
        listener: told how far reading is, and what was left out.
        cache: where traces are kept, so that they need not be read again.

    Raises:
        UsageError: a path or name does not exist, or the folder holds several files that may be traces.
        NotATraceError: the file is no trace, or the folder holds none.
    """
    deployment = Deployment.of(model, tp, context, ep=ep, dp=dp, server_info=server_info)
    folders = [_folder(source) for source in sources]
    find_gpu(gpu, None)  # an unknown name is said before any file is read
    trace = load(_one_file(path), listener=listener or Silent(), cache=cache)
    examined = _examine(index, trace, None, deployment, gpu, folders, internal)
    return Recording(summarise(index, examined), examined)


def ranks(
    path: str | Path, *, listener: Listener | None = None, cache: Cache | None = None
) -> list[tuple[str, int | None]]:
    """Return the traces that a path names, each with the rank that it recorded, or None.

    Raises:
        UsageError: the path does not exist.
        NotATraceError: the file is no trace, or the folder holds none.
    """
    return [(trace.path, trace.rank) for trace in _traces([path], listener or Silent(), cache)]


def what_if(  # noqa: PLR0913 -- the options of the command, all by name
    path: str | Path,
    *,
    remove: Sequence[str] = (),
    scale: Sequence[str] = (),
    model: str | None = None,
    server_info: str | Path | None = None,
    tp: int | None = None,
    ep: int | None = None,
    dp: int | None = None,
    gpu: str | None = None,
    context: int | None = None,
    sources: Sequence[str | Path] = (),
    internal: Collection[str] = INTERNAL,
    capture_trace: str | Path | None = None,
    listener: Listener | None = None,
    cache: Cache | None = None,
) -> Prediction:
    """Predict the steps of a trace after changes: each alone, and one after another.

    Args:
        path: one trace file, or a folder that holds one.
        remove: rules that found something; globs of kernels and copies; globs of calls of the host that launch
            nothing, such as `cudaStreamSynchronize`.
        scale: `glob=factor`: what the durations of such kernels and copies are multiplied by.
        model: this and the rest as `diagnose` takes them.
        server_info: a file with what the server tells of itself.
        tp: ranks of the tensor-parallel group.
        ep: ranks, of those, that the experts are shared out over.
        dp: groups of those ranks that attend to requests of their own.
        gpu: a GPU's name.
        context: live tokens of a request.
        sources: folders in which the recorded source files are looked for.
        internal: packages whose functions are not your code.
        capture_trace: a trace of the graph's capture, or of the same steps run eagerly.
        listener: told how far reading is, and what was left out.
        cache: where traces are kept, so that they need not be read again.

    Raises:
        UsageError: nothing is to be changed, or what is to be is not in the steps; a path or name does not exist.
        NotATraceError: the file is no trace, or the folder holds none.
    """
    check_changes(remove, scale)  # said before any file is read
    deployment = Deployment.of(model, tp, context, ep=ep, dp=dp, server_info=server_info)
    folders = [_folder(source) for source in sources]
    find_gpu(gpu, None)
    listener = listener or Silent()
    donor = _donor(capture_trace, listener, cache)
    trace = load(_one_file(path), listener=listener, cache=cache)
    return predict(_examine(0, trace, donor, deployment, gpu, folders, internal), remove, scale)


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
    linked, steps, _ = _one_trace(path, listener, cache)
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
    linked, steps, _ = _one_trace(path, listener or Silent(), cache)
    return run_query(linked, steps, sql)


def floor(  # noqa: PLR0913 -- the options of the command, all by name
    *,
    model: str | None = None,
    gpu: str,
    server_info: str | Path | None = None,
    tp: int | None = None,
    ep: int | None = None,
    dp: int | None = None,
    weights: str | None = None,
    kv_dtype: str | None = None,
    batch: int | None = None,
    context: int = 1024,
    measured_us: float | None = None,
    traces: Sequence[str | Path] = (),
    listener: Listener | None = None,
    cache: Cache | None = None,
) -> Floor:
    """Return the least time that a decode step can take, and the way from there to what was measured.

    Args:
        model: a preset's name, or a Hugging Face `config.json` or its folder.
        gpu: a GPU's name.
        server_info: a file with what the server tells of itself, for what the other arguments do not.
        tp: ranks of the tensor-parallel group; told nowhere, 1.
        ep: ranks, of those, that the experts are shared out over.
        dp: groups of those ranks that attend to requests of their own.
        weights: format of the routed experts, or of all linear layers of a dense model; None: as the checkpoint or the
            server tells, else `bf16`.
        kv_dtype: `bf16` or `fp8`; None: as the server or the checkpoint tells, else `bf16`.
        batch: requests in the step; None: as many as the first trace's steps have, without a trace 1.
        context: live tokens of each request.
        measured_us: what such a step was measured to take, in µs.
        traces: of such steps, in place of `measured_us`; of several batch sizes to tell fixed costs from proportional.
        listener: told how far reading is, and what makes totals of a trace doubtful.
        cache: where traces are kept, so that they need not be read again.

    Raises:
        UsageError: a name is not known, a number is below 1, the model does not divide by the ranks, the GPU's rates
            are not known, or the traces hold no decode steps of that batch size.
        NotATraceError: a file is no trace, or a folder holds none.
    """
    if measured_us is not None and traces:
        raise UsageError("--measured and --trace both tell what was measured; give one of them")
    if measured_us is not None and not 0 < measured_us < inf:
        raise UsageError(f"--measured {measured_us} µs: is no duration")
    if batch is not None and batch < 1:
        raise UsageError(f"--batch {batch}: must be at least 1")
    if model is None and server_info is None:
        raise UsageError("--model is needed")
    ceilings = Ceilings.of(find_gpu(gpu, None))
    if ceilings is None:
        raise UsageError(f"--gpu {gpu}: the rate of its memory is not known")
    tp = 1 if tp is None and server_info is None else tp
    served = Deployment.of(
        model, tp, context, ep=ep, dp=dp, weights=weights, kv_dtype=kv_dtype, server_info=server_info
    )
    if served.name is None or served.spec is None or served.parallel is None:
        raise UsageError(f"--model is needed{f': {served.notes[0]}' if served.notes else ''}")
    steps = [measured for path in traces for measured in _decode_steps(path, listener or Silent(), cache)]
    if batch is None:
        batch = (steps[0].batch_size if steps else None) or 1
    rank = Rank(served.spec, served.parallel, served.weights)
    load_ = Load(batch, context, served.kv_dtype or "BFloat16")
    case = FloorCase(
        model=encodable(served.name),
        gpu=gpu,
        tp=rank.parallel.tp,
        ep=rank.parallel.ep,
        dp=rank.parallel.attention_dp,
        weights=served.main_format.name,
        kv_dtype=_KV_NAMES.get(load_.kv_dtype, load_.kv_dtype),
        batch=batch,
        context=context,
    )
    found = step_floor(case, rank, load_, ceilings, measured_us=measured_us, steps=steps)
    untold = [] if served.formats is not None else ["weights are BF16, as nothing tells otherwise (--weights)"]
    return msgspec.structs.replace(found, assumptions=[*served.notes, *untold, *found.assumptions])


def _decode_steps(path: str | Path, listener: Listener, cache: Cache | None) -> list[MeasuredSteps]:
    linked, steps, complete = _one_trace(path, listener, cache)
    class_of_kernel = classes(linked.kernels.select("name", "kind"))
    measured = measure_steps(linked, steps, class_of_kernel, is_complete=complete)
    if not measured:
        found = ", ".join(steps.phases()) or "none at all"
        raise UsageError(f"--trace {path}: holds no decode step; the phases of its steps: {found}")
    return measured


def _one_trace(path: str | Path, listener: Listener, cache: Cache | None) -> tuple[Linked, Steps, bool]:
    file = _one_file(path)
    linked = link(load(file, listener=listener, cache=cache))
    steps = find_steps(linked)
    warnings = check_health(linked, steps, layers=None)
    for warning in warnings:
        if warning.spoils_totals:
            listener.warns(f"{file}: {warning.message}")
    return linked, steps, is_complete(warnings)


def _donor(capture_trace: str | Path | None, listener: Listener, cache: Cache | None) -> Donor | None:
    if capture_trace is None:
        return None
    return Donor.of(link(load(_one_file(capture_trace), listener=listener, cache=cache)))


def _one_file(path: str | Path) -> str:
    files = find_traces(path)
    if len(files) > 1:
        raise UsageError(f"{path}: the folder holds {len(files)} files that may be traces; name one of them")
    return files[0]


def _traces(paths: Sequence[str | Path], listener: Listener, cache: Cache | None) -> Iterator[Trace]:
    """Load the traces one after another; what is no trace in a folder is passed over, unless nothing else is there."""
    for path in paths:
        files = find_traces(path, listener)
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
    warnings = check_health(linked, steps, len(deployment.spec.layers) if deployment.spec else None)
    warnings += joined.warnings
    attributed = attribute(linked, steps)
    deployment = settle(deployment, attributed.groups)
    gpu = find_gpu(gpu_name, trace.device_name)
    timeline, profiler = Timeline(linked, steps), Profiler.of(linked)
    stacks, complete = has_stacks(linked), is_complete(warnings)
    cases = [
        Case(
            phase=phase,
            step_indices=indices,
            step=steps.typical(indices),
            linked=linked,
            groups=attributed.of_phase(phase),
            timeline=timeline,
            measured=timeline.measured(indices),
            replay_error=timeline.error(indices),
            profiler=profiler,
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
    return Examined(
        linked,
        steps,
        warnings,
        attributed,
        deployment,
        gpu,
        cases,
        detected,
        joined.method,
        joined.aligned,
        complete,
    )


def _folder(path: str | Path) -> Path:
    folder = Path(path)
    try:
        exists = folder.is_dir()
    except OSError as error:
        raise UsageError(f"--source {path}: cannot be read ({error.strerror})") from error
    if not exists:
        raise UsageError(f"--source {path}: no such folder")
    return folder
