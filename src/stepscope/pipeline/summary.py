"""What the stages found, as a document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from stepscope import document
from stepscope.pipeline.attribute.kernel_class import UNCLASSIFIED
from stepscope.pipeline.cost import Ceilings
from stepscope.pipeline.detect import by_batch
from stepscope.pipeline.detect.across import Across
from stepscope.pipeline.detect.findings import in_order
from stepscope.pipeline.detect.registry import all_rules
from stepscope.pipeline.detect.replays import can_predict
from stepscope.pipeline.detect.suspects import COLLECTIVES, rule_out
from stepscope.pipeline.efficiency import PhaseWork, efficiencies
from stepscope.pipeline.step_work import work_by_class
from stepscope.trace import intervals

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.hardware import Gpu
    from stepscope.model import Deployment
    from stepscope.pipeline.attribute import Attributed
    from stepscope.pipeline.attribute.join import JoinMethod
    from stepscope.pipeline.detect import Detected
    from stepscope.pipeline.detect.rule import Case
    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps
    from stepscope.trace import TraceWarning

_NO_STEPS = "record while the server answers requests, not while it captures its graphs"
_NO_GPU_EVENTS = 'record with GPU activity (torch: ProfilerActivity.CUDA; SGLang: "activities": ["CPU", "GPU"])'
_GRID = "grid"
LEAST_SHARE = 0.005
"""Kernels below this share of their phase's kernel time are not listed one by one."""


@dataclass(frozen=True, slots=True)
class Examined:
    """One trace with what each stage made of it."""

    linked: Linked
    steps: Steps
    warnings: Sequence[TraceWarning]
    attributed: Attributed
    deployment: Deployment
    """As told, and where it was not, as the trace's shapes determine it."""
    gpu: Gpu | None
    cases: Sequence[Case]
    detected: Sequence[Detected]
    join_method: JoinMethod | None
    """How ops of another trace were joined; None where none were."""
    aligned: NDArray[np.bool_]
    """Shape [kernels]: which were found in that trace, also where it has no op for them."""
    complete: bool
    """Whether idle time and totals can be believed."""


def summarise(index: int, examined: Examined) -> document.Diagnosis:
    """Return the document of one trace, which stands at `index` among those that are diagnosed together."""
    breakdown = [row for case in examined.cases for row in _breakdown(index, examined, case)]
    return document.Diagnosis(
        traces=[_trace_info(examined)],
        model=_model(examined.deployment),
        hardware=_hardware(examined.gpu),
        steps=[_step_summary(index, examined, case) for case in examined.cases],
        breakdown=breakdown,
        kernels=[row for case in examined.cases for row in _kernels(index, case)],
        findings=in_order([finding for detected in examined.detected for finding in detected.findings]),
        ladder=[rung for detected in examined.detected for rung in detected.ladder],
        ruled_out=list(_ruled_out(index, examined, breakdown)),
        could_not_check=list(dict.fromkeys(_could_not_check(index, examined))),  # phases often lack the same
    )


def together(parts: Sequence[document.Diagnosis], across: Across | None = None) -> document.Diagnosis:
    """Return one document of several traces' own, and of what ranks show side by side, their findings ordered."""
    across, parts = across or Across(), by_batch.across(parts)
    return document.Diagnosis(
        traces=[trace for part in parts for trace in part.traces],
        model=_common_model([part.model for part in parts if part.model]),
        hardware=next((part.hardware for part in parts if part.hardware), None),
        steps=[step for part in parts for step in part.steps],
        breakdown=[row for part in parts for row in part.breakdown],
        kernels=[row for part in parts for row in part.kernels],
        findings=in_order([*across.findings, *(finding for part in parts for finding in part.findings)]),
        ladder=[
            *(rung for part in parts for rung in part.ladder if (rung.trace, rung.phase) not in across.ladders),
            *(rung for rungs in across.ladders.values() for rung in rungs),
        ],
        ruled_out=[*(row for part in parts for row in part.ruled_out if not _is_told(row, across)), *across.ruled_out],
        could_not_check=list(
            dict.fromkeys([*(row for part in parts for row in part.could_not_check), *across.could_not_check])
        ),
    )


def _is_told(row: document.RuledOut, across: Across) -> bool:
    """Tell whether a suspect of one trace is what several ranks show to be a cause."""
    return row.hypothesis == COLLECTIVES and (row.trace, row.phase) in across.told


def _trace_info(examined: Examined) -> document.TraceInfo:
    trace = examined.linked.trace
    return document.TraceInfo(
        path=document.encodable(trace.path),
        bytes=trace.file_bytes,
        events=trace.event_count,
        rank=trace.rank,
        device=trace.device_name,
        complete=examined.complete,
        attribution=_attribution(examined),
        warnings=[
            document.Warning_(code=warning.code, message=warning.message, count=warning.count, is_note=warning.is_note)
            for warning in examined.warnings
        ],
    )


def _attribution(examined: Examined) -> document.Attribution:
    kernels = examined.linked.kernels
    start = kernels["start_ns"].to_numpy()
    duration = kernels["duration_ns"].to_numpy()
    total = int(duration.sum())

    def share(rows: NDArray[np.bool_]) -> float | None:
        return float(duration[rows].sum() / total) if total else None

    outside = examined.steps.step_of_kernel < 0
    read_off_grid = np.zeros(duration.shape, dtype=np.bool_)
    for group in examined.attributed.groups:
        if group.moved is not None and group.moved.shape is None:
            read_off_grid[group.rows] = True
    joined = kernels["donor_op"].is_not_null().to_numpy()
    by_join = examined.join_method is not None
    return document.Attribution(
        with_launch=share(kernels["launch"].is_not_null().to_numpy()),
        with_op=share(kernels["op"].is_not_null().to_numpy() | joined),
        joined=share(examined.aligned if by_join else read_off_grid),
        join_method=examined.join_method or (_GRID if read_off_grid.any() else None),
        outside_steps_us=intervals.covered(start[outside], (start + duration)[outside]) / 1e3,
        unclassified=share(examined.attributed.class_of_kernel == UNCLASSIFIED),
    )


def _step_summary(index: int, examined: Examined, case: Case) -> document.StepSummary:
    measured = case.measured
    kernels = examined.steps.kernels_per_step()[list(case.step_indices)]
    return document.StepSummary(
        trace=index,
        phase=case.phase,
        count=len(examined.steps.phases()[case.phase]),
        steady=len(case.step_indices),
        batch_size=case.step.batch_size,
        tokens=case.step.tokens,
        duration_us=_spread(measured.duration_us),
        gpu_span_us=_spread(measured.gpu_span_us),
        gpu_busy_us=float(np.median(measured.busy_us)),
        gpu_idle_us=measured.idle_us if examined.complete else None,
        kernels_per_step=float(np.median(kernels)),
        unprofiled_duration_us=case.unprofiled_us() if can_predict(case) else None,
    )


def _breakdown(index: int, examined: Examined, case: Case) -> Iterator[document.ClassTime]:
    work = work_by_class(examined.linked, examined.steps, examined.attributed.class_of_kernel, case.step_indices)
    for kernel_class, of_class in sorted(work.items(), key=lambda item: (-item[1].time_us_per_step, item[0])):
        yield document.ClassTime(
            trace=index,
            phase=case.phase,
            kernel_class=kernel_class,
            time_us_per_step=of_class.time_us_per_step,
            share_of_step=case.measured.share(of_class.time_us_per_step),
            calls_per_step=of_class.calls_per_step,
        )


def _kernels(index: int, case: Case) -> Iterator[document.KernelTime]:
    ceilings = Ceilings.of(case.gpu)
    phase = PhaseWork(case.linked, case.groups, case.step, case.deployment)
    for row in efficiencies(phase, ceilings, LEAST_SHARE):
        group, work = row.group, row.work
        yield document.KernelTime(
            trace=index,
            phase=case.phase,
            kernel=group.kernel,
            kernel_class=group.kernel_class,
            op=group.op,
            input_shapes=group.input_shapes,
            tensor=row.tensor,
            calls_per_step=group.calls_per_step,
            us_per_call=group.us_per_call,
            time_us_per_step=group.time_us_per_step,
            share_of_step=case.measured.share(group.time_us_per_step),
            bytes_per_op=work.bytes if work else None,
            avoidable_bytes_per_op=work.avoidable_bytes if work else None,
            flops_per_op=work.flops if work else None,
            sent_bytes_per_op=work.sent_bytes if work else None,
            floor_us_per_step=row.floor_us_per_step,
            efficiency=row.efficiency,
            bound=row.bound,
        )


def _ruled_out(index: int, examined: Examined, breakdown: Sequence[document.ClassTime]) -> Iterator[document.RuledOut]:
    for case, detected in zip(examined.cases, examined.detected, strict=True):
        times = {row.kernel_class: row.time_us_per_step for row in breakdown if row.phase == case.phase}
        yield from rule_out(case, index, times, detected.causes, detected.silent)


def _could_not_check(index: int, examined: Examined) -> Iterator[document.CouldNotCheck]:
    if not examined.cases:
        has_gpu_events = examined.linked.kernels.height > 0
        missing, how = ("no steps", _NO_STEPS) if has_gpu_events else ("no GPU events", _NO_GPU_EVENTS)
        for rule in all_rules():
            yield document.CouldNotCheck(rule=rule.id, trace=index, missing=missing, how_to_capture=how)
    for detected in examined.detected:
        yield from detected.could_not_check


def _model(deployment: Deployment) -> document.Model | None:
    if deployment.name is None or deployment.source is None:
        return None
    parallel = deployment.parallel
    return document.Model(
        name=document.encodable(deployment.name),
        source=document.encodable(deployment.source),
        layers=len(deployment.spec.layers) if deployment.spec else None,
        tp=parallel.tp if parallel else None,
        ep=parallel.ep if parallel else None,
        dp=parallel.attention_dp if parallel else None,
        weights=deployment.format_names,
        kv_dtype=deployment.kv_dtype,
        pool_slots=deployment.pool_slots,
        page_size=deployment.page_size,
        notes=[document.encodable(note) for note in deployment.notes],
    )


def _common_model(models: Sequence[document.Model]) -> document.Model | None:
    """Return the model of all traces: what one trace's shapes determine holds, unless another's say otherwise."""
    if not models:
        return None
    known = {
        field: {value for model in models if (value := getattr(model, field)) is not None}
        for field in ("tp", "ep", "dp", "pool_slots")
    }
    agreed = {field: values.pop() if len(values) == 1 else None for field, values in known.items()}
    notes = list(dict.fromkeys(note for model in models for note in model.notes))
    return replace(models[0], notes=notes, **agreed)


def _hardware(gpu: Gpu | None) -> document.Hardware | None:
    if gpu is None:
        return None
    peak, measured = gpu.memory_gb_per_s, gpu.memory_measured_gb_per_s
    sources = [figure.source for figure in (peak, measured) if figure]
    return document.Hardware(
        name=gpu.name,
        memory_gb_per_s=peak.value if peak else None,
        memory_measured_gb_per_s=measured.value if measured else None,
        source="; measured: ".join(sources) or None,
    )


def _spread(values: NDArray[np.float64]) -> document.Spread:
    return document.Spread(min=float(values.min()), median=float(np.median(values)), max=float(values.max()))
