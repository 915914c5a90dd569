"""The diagnosis: the only place that chains the stages.

load → link → steps → health → attribute → cost → whatif → detect → document; then, of several ranks, what was kept of
each → ranks → detect. `ops` and `query` leave the chain after
cost and after attribute: they list what a trace holds, and judge nothing.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.hardware import find_gpu
from stepscope.pipeline.attribute import attribute, classes
from stepscope.pipeline.attribute.code_owner import INTERNAL
from stepscope.pipeline.attribute.join import Donor, join, join_within
from stepscope.pipeline.cost.floor import measure_steps
from stepscope.pipeline.cost.floor.setup import Setup
from stepscope.pipeline.cost.infer import settle
from stepscope.pipeline.detect import detect
from stepscope.pipeline.detect.across import Judged, look_across
from stepscope.pipeline.detect.rule import Case
from stepscope.pipeline.facts import Facts
from stepscope.pipeline.health import check_health, has_stacks, is_complete
from stepscope.pipeline.link import link
from stepscope.pipeline.op_groups import list_ops, nothing_listed
from stepscope.pipeline.predict import check_changes, predict
from stepscope.pipeline.ranks import RankCalls, collectives, message_of
from stepscope.pipeline.reader import NotRead, Reader
from stepscope.pipeline.recording import Recording
from stepscope.pipeline.steps import find_steps
from stepscope.pipeline.summary import Examined, summarise, together
from stepscope.pipeline.tables import check_query, run_query
from stepscope.pipeline.whatif import Profiler, Timeline

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path
    from typing import Unpack

    import polars as pl

    from stepscope.document import Diagnosis, Floor, Prediction
    from stepscope.model import Served
    from stepscope.pipeline.cost.floor import MeasuredSteps
    from stepscope.pipeline.facts import Options
    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.load import Cache, Listener
    from stepscope.pipeline.steps import Steps
    from stepscope.trace import Trace


def diagnose(
    paths: Sequence[str | Path],
    *,
    capture_trace: str | Path | None = None,
    listener: Listener | None = None,
    cache: Cache | None = None,
    **options: Unpack[Options],
) -> Diagnosis:
    """Diagnose trace files: each on its own, and those of several ranks of one run side by side.

    Of several files, one that is no trace is passed over.

    Args:
        paths: trace files, or folders of them.
        capture_trace: a trace of the graph's capture, or of the same steps run eagerly; it tells the ops, shapes and
            stacks of the kernels that graphs replay in the traces.
        listener: told how far reading is, and what was left out.
        cache: where traces are kept, so that they need not be read again.
        **options: `model`, `server_info`, `tp`, `ep`, `dp`, `context`, `gpu`, `sources` and `internal`, as
            `pipeline.facts.Options` documents them.

    Raises:
        UsageError: a path or name does not exist.
        NotATraceError: no file is a trace, or a folder holds none.
    """
    if not paths:
        raise UsageError("no trace given")
    facts, reader = Facts.of(**options), Reader(listener, cache)
    donor = _donor(capture_trace, reader)
    alone = reader.count(paths) == 1
    parts: list[Diagnosis] = []
    ranks: list[RankCalls] = []
    not_read: list[NotRead] = []
    for trace in reader.attempts(paths):
        if isinstance(trace, NotRead):
            not_read.append(trace)
            continue
        examined = _examine(len(parts), trace, donor, facts, alone=alone)
        ranks.append(_rank_calls(len(parts), examined))
        parts.append(summarise(len(parts), examined))
        del trace, examined  # so that no more than one is held: the ranks may be many

    def again(rank: RankCalls) -> list[Judged]:
        examined = _examine(rank.trace, reader.one(rank.path), donor, facts)
        pairs = zip(examined.cases, examined.detected, strict=True)
        return [Judged(case, detected.causes) for case, detected in pairs]

    return together(parts, None if alone else look_across(ranks, not_read, again))


def examine(path: str | Path, index: int, facts: Facts, reader: Reader) -> Recording:
    """Diagnose one trace, and keep what a comparison asks beyond the diagnosis.

    Args:
        path: one trace file, or a folder that holds one.
        index: its place among the traces that are compared.
        facts: what is told of its run.
        reader: how it is read.

    Raises:
        UsageError: the path does not exist, or the folder holds several files that may be traces.
        NotATraceError: the file is no trace, or the folder holds none.
    """
    examined = _examine(index, reader.one(path), None, facts)
    return Recording(summarise(index, examined), examined)


def what_if(  # noqa: PLR0913 -- the options of the command, all by name
    path: str | Path,
    *,
    remove: Sequence[str] = (),
    scale: Sequence[str] = (),
    fuse: Sequence[str] = (),
    capture_trace: str | Path | None = None,
    listener: Listener | None = None,
    cache: Cache | None = None,
    **options: Unpack[Options],
) -> Prediction:
    """Predict the steps of a trace after changes: each alone, and one after another.

    Args:
        path: one trace file, or a folder that holds one.
        remove: rules that found something; globs of kernels and copies; globs of calls of the host that launch
            nothing, such as `cudaStreamSynchronize`.
        scale: `glob=factor`: what the durations of such kernels and copies are multiplied by; `glob=3us`: how long
            each takes.
        fuse: globs, `|` between them: such kernels become one where they follow each other on a stream.
        capture_trace: a trace of the graph's capture, or of the same steps run eagerly.
        listener: told how far reading is, and what was left out.
        cache: where traces are kept, so that they need not be read again.
        **options: as `diagnose` takes them.

    Raises:
        UsageError: nothing is to be changed, or what is to be is not in the steps; a path or name does not exist.
        NotATraceError: the file is no trace, or the folder holds none.
    """
    check_changes(remove, scale, fuse)  # said before any file is read
    facts, reader = Facts.of(**options), Reader(listener, cache)
    donor = _donor(capture_trace, reader)
    return predict(_examine(0, reader.one(path), donor, facts), remove, scale, fuse)


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
    reader = Reader(listener, cache)
    linked, steps, _ = _one_trace(path, reader)
    found = list_ops(linked, steps, name, internal)
    if not found.height:
        reader.warn(f"{path}: {nothing_listed(name)}")
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
    linked, steps, _ = _one_trace(path, Reader(listener, cache))
    return run_query(linked, steps, sql)


def floor(  # noqa: PLR0913 -- the options of the command, all by name
    *,
    gpu: str,
    weights: str | None = None,
    kv_dtype: str | None = None,
    batch: int | None = None,
    context: int = 1024,
    measured_us: float | None = None,
    traces: Sequence[str | Path] = (),
    listener: Listener | None = None,
    cache: Cache | None = None,
    **served: Unpack[Served],
) -> Floor:
    """Return the least time that a decode step can take, and the way from there to what was measured.

    Args:
        gpu: a GPU's name.
        weights: format of the routed experts, or of all linear layers of a dense model; None: as the checkpoint or the
            server tells, else `bf16`.
        kv_dtype: `bf16` or `fp8`; None: as the server or the checkpoint tells, else `bf16`.
        batch: requests in the step; None: as many as the first trace's steps have, without a trace 1.
        context: live tokens of each request.
        measured_us: what such a step was measured to take, in µs.
        traces: of such steps, in place of `measured_us`; of several batch sizes to tell fixed costs from proportional.
        listener: told how far reading is, and what makes totals of a trace doubtful.
        cache: where traces are kept, so that they need not be read again.
        **served: `model`, `server_info`, `tp`, `ep` and `dp`, as `model.Served` documents them; without ranks there is
            one.

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
    setup = Setup.of(gpu, context, weights=weights, kv_dtype=kv_dtype, **served)
    reader = Reader(listener, cache)
    steps = [measured for path in traces for measured in _decode_steps(path, reader)]
    if batch is None:
        batch = (steps[0].batch_size if steps else None) or 1
    return setup.floor(batch, measured_us=measured_us, steps=steps)


def _decode_steps(path: str | Path, reader: Reader) -> list[MeasuredSteps]:
    linked, steps, complete = _one_trace(path, reader)
    class_of_kernel = classes(linked.kernels.select("name", "kind"))
    measured = measure_steps(linked, steps, class_of_kernel, is_complete=complete)
    if not measured:
        found = ", ".join(steps.phases()) or "none at all"
        raise UsageError(f"--trace {path}: holds no decode step; the phases of its steps: {found}")
    return measured


def _one_trace(path: str | Path, reader: Reader) -> tuple[Linked, Steps, bool]:
    linked = link(reader.one(path))
    steps = find_steps(linked)
    warnings = check_health(linked, steps, layers=None)
    for warning in warnings:
        if warning.spoils_totals:
            reader.warn(f"{linked.trace.path}: {warning.message}")
    return linked, steps, is_complete(warnings)


def _donor(capture_trace: str | Path | None, reader: Reader) -> Donor | None:
    return None if capture_trace is None else Donor.of(link(reader.one(capture_trace)))


def _rank_calls(index: int, examined: Examined) -> RankCalls:
    groups = [
        (group, message_of(group, examined.linked, examined.deployment, case.step))
        for case in examined.cases
        for group in collectives(case.groups, examined.linked)
    ]
    step_us = {case.phase: case.measured.step_us for case in examined.cases}
    return RankCalls.of(index, examined.linked, examined.steps, groups=groups, step_us=step_us, gpu=examined.gpu)


def _examine(index: int, trace: Trace, donor: Donor | None, facts: Facts, *, alone: bool = True) -> Examined:
    linked = link(trace)
    joined = join_within(linked) if donor is None else join(linked, donor)
    linked = joined.linked
    steps = find_steps(linked)
    spec = facts.deployment.spec
    warnings = check_health(linked, steps, len(spec.layers) if spec else None)
    warnings += joined.warnings
    attributed = attribute(linked, steps)
    deployment = settle(facts.deployment, attributed.groups)
    gpu = find_gpu(facts.gpu, trace.device_name)
    timeline, profiler = Timeline(linked, steps), Profiler.of(linked, steps)
    stacks, complete = has_stacks(linked), is_complete(warnings)
    cases = [
        Case(
            phase=phase,
            step_indices=indices,
            step=steps.typical(indices),
            steps=steps,
            linked=linked,
            groups=attributed.of_phase(phase),
            timeline=timeline,
            measured=timeline.measured(indices),
            replay_error=timeline.error(indices),
            profiler=profiler,
            deployment=deployment,
            gpu=gpu,
            sources=facts.sources,
            internal=facts.internal,
            has_stacks=stacks,
            complete=complete,
            alone=alone,
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
