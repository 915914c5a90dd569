"""Sentences about a diagnosis, for the renderers that write for people."""

from __future__ import annotations

from math import isclose
from pathlib import PurePath
from typing import TYPE_CHECKING

from stepscope import units
from stepscope.kernel_name import short_names
from stepscope.report.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.document import (
        AtBatch,
        CouldNotCheck,
        Diagnosis,
        Evidence,
        Finding,
        Group,
        KernelTime,
        Model,
        RankArrival,
        RuledOut,
        Rung,
        StepSummary,
        TraceInfo,
        WhatIf,
    )

NEGLIGIBLE_GAIN = 0.01
"""A gain below this fraction of the step is called none."""
FOLDED_SHARE = 0.01
"""Findings that neither take nor gain this fraction of the step are only named."""
_ASKED_BY = {"MoE GEMM": "gemm-below-roofline"}
"""Suspects that lack what a rule lacks, which says it of more kernels."""
SHOWN_FRAMES = 3
SHOWN_GROUPS = 3
SHOWN_RANKS = 8
KERNEL_HEADER = ("longest kernels", "time a step", "share", "efficiency")
"""Headings of `longest_kernels`."""
LISTED_SHARE = 0.01
"""Kernels below this fraction of the step are left out of the list."""

_JOINED = {
    "eager-twin": "the same kernels run eagerly",
    "capture-launches": "the launches of the graph's capture",
}
"""What told the ops of kernels that a graph replayed."""


def longest_kernels(diagnosis: Diagnosis, step: StepSummary, most: int) -> list[tuple[str, ...]]:
    """Return the rows of a table of a phase's longest kernels: the name, and figures under `KERNEL_HEADER`."""
    rows = [row for row in diagnosis.kernels if (row.trace, row.phase) == (step.trace, step.phase)]
    short = short_names(row.kernel for row in rows)
    return [
        (
            _work_name(row, short),
            units.time(row.time_us_per_step),
            units.share(row.share_of_step),
            _efficiency(row),
        )
        for row in rows[:most]
        if row.share_of_step >= LISTED_SHARE
    ]


def _efficiency(row: KernelTime) -> str:
    """Say which part of what bounds it a kernel reaches; a launch's latency is no rate."""
    if row.efficiency is None:
        return ""
    reached = units.share(row.efficiency)
    return f"{reached}, latency-bound" if row.bound == "latency" else f"{reached} of {row.bound}"


def _work_name(row: KernelTime, short: Mapping[str, str]) -> str:
    """Name work by its op and tensor, else by its kernel."""
    if row.op is None:
        return shown(short[row.kernel])
    return shown(f"{row.op}, {row.tensor}" if row.tensor else row.op)


def ladder_line(today_us: float, rungs: Sequence[Rung], word: str = "without") -> str:
    """Say where one change after another leads: ``80.36 ms, without a 11.93 ms, without b too 10.51 ms``.

    `word` stands before each: what is made faster is still there, so that of such the step is the one "after" it.
    """
    changes = [f"{word} {shown(rung.fixed)}{' too' if number else ''}" for number, rung in enumerate(rungs)]
    steps = [f"{text} {units.time(rung.step_us)}" for text, rung in zip(changes, rungs, strict=True)]
    return ", ".join((units.time(today_us), *steps))


def ladder_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Say, for each trace and phase with several findings, where fixing one after another leads."""
    for step in diagnosis.steps:
        rungs = [rung for rung in diagnosis.ladder if (rung.trace, rung.phase) == (step.trace, step.phase)]
        if len(rungs) > 1:
            name = trace_name(diagnosis, step.trace)
            place = f"{step.phase} in {name}" if name else step.phase
            yield f"One after another ({place}): {ladder_line(step.duration_us.median, rungs)}."


def is_folded(finding: Finding) -> bool:
    """Tell whether a finding is too small for more than its name."""
    gain = 0.0
    if finding.what_if is not None:
        gain = max(finding.what_if.gain_fraction, finding.what_if.gain_fraction_others_fixed)
    return max(gain, finding.share_of_step) < FOLDED_SHARE


def trace_line(trace: TraceInfo) -> str:
    """Describe an input file: path, size, events, device, rank."""
    parts = [units.size(trace.bytes), f"{trace.events:,} events", shown(trace.device or "device not recorded")]
    if trace.rank is not None:
        parts.append(f"rank {trace.rank}")
    if not trace.complete:
        parts.append("INCOMPLETE")
    return f"{shown(trace.path)} ({', '.join(parts)})"


def model_line(model: Model) -> str:
    """Describe the model and how it is served: name, layers, ranks, formats, pool."""
    parts = ["not known" if model.layers is None else f"{model.layers} layers"]
    groups = (("TP", model.tp), ("EP", model.ep), ("DP", model.dp))
    parts += [f"{name} {ranks}" for name, ranks in groups if ranks and (ranks > 1 or name == "TP")]
    if model.weights:
        parts += [f"{form} {' and '.join(of)}" for form, of in _by_format(model.weights).items() if form != "bf16"]
    if model.kv_dtype:
        parts.append(f"KV {model.kv_dtype}")
    if model.pool_slots:
        parts.append(f"pool of {model.pool_slots:,} slots")
    return f"{shown(model.name)} ({', '.join(parts)})"


def _by_format(weights: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part, form in weights.items():
        found.setdefault(form, []).append(part)
    return found


def trace_rows(trace: TraceInfo) -> Iterator[tuple[str, str]]:
    """Yield what must be known about an input file, each with its label: warnings first, then notes."""
    for row in sorted(trace.warnings, key=lambda row: row.is_note):
        times = f" ({row.count:,})" if row.count > 1 else ""
        yield "note" if row.is_note else "warning", shown(row.message) + times
    told = trace.attribution
    if told.join_method in _JOINED and told.joined:
        share, where = units.share(told.joined), _JOINED[told.join_method]
        yield "note", f"kernels of a graph, {share} of the kernel time, line up with {where}"


def step_line(step: StepSummary) -> str:
    """Describe the steps of a phase."""
    batch = f", batch {step.batch_size}" if step.batch_size is not None else ""
    noun = "step" if step.count == 1 else "steps"
    steady = f" ({step.steady} steady)" if step.steady < step.count else ""
    duration = units.time(step.duration_us.median)
    if step.duration_us.min < step.duration_us.max:
        duration += f" ({units.time(step.duration_us.min)} to {units.time(step.duration_us.max)})"
    idle, unprofiled = "idle not known", ""
    if step.gpu_idle_us is not None:
        share = units.share(step.gpu_idle_us / step.duration_us.median if step.duration_us.median else 0.0)
        idle = f"idle {units.time(step.gpu_idle_us)} ({share})"
    span = units.time(step.gpu_span_us.median)
    kernels = f"{units.count(step.kernels_per_step)} kernel{'' if step.kernels_per_step == 1 else 's'}"
    if step.unprofiled_duration_us is not None:
        unprofiled = f", about {units.time(step.unprofiled_duration_us)} without the profiler"
    return (
        f"{step.count} {step.phase} {noun}{steady}{batch}: {duration} a step{unprofiled}; GPU span {span},"
        f" busy {units.time(step.gpu_busy_us)}, {idle}; {kernels}"
    )


def trace_name(diagnosis: Diagnosis, trace: int | None) -> str | None:
    """Return the file name that tells traces apart; None where there is nothing to tell."""
    if trace is None or len(diagnosis.traces) == 1:
        return None
    return shown(PurePath(diagnosis.traces[trace].path).name)


def finding_rows(diagnosis: Diagnosis, finding: Finding) -> Iterator[tuple[str, str]]:
    """Yield a finding's parts, each with its label."""
    evidence = finding.evidence
    yield "costs", _cost(finding)
    yield from _measured_rows(evidence)
    if evidence.kernel:
        kernels = [other.evidence.kernel for other in diagnosis.findings if other.evidence.kernel]
        yield "kernel", shown(short_names(kernels)[evidence.kernel])
    if evidence.modules:
        yield "module", shown(_modules(evidence))
    if evidence.statement_at:
        text = f": {' '.join(evidence.statement.split())}" if evidence.statement else ""  # in one line, if in several
        yield "code", shown(f"{evidence.statement_at}{text}")
    if evidence.frames:
        yours = [frame for frame in evidence.frames if frame.yours]
        frames = (yours or evidence.frames)[-SHOWN_FRAMES:]
        yield "stack", " → ".join(shown(f"{frame.file}({frame.line}) {frame.function}") for frame in frames)
    if finding.what_if is not None:
        yield "what if", _what_if(diagnosis, finding, finding.what_if)
    for note in finding.notes:
        yield "note", shown(note)
    for fix in finding.fix:
        where = f" [{shown(fix.where)}]" if fix.where else ""
        needs = f" Needs {fix.needs}." if fix.needs else ""
        yield f"fix, {'setting' if fix.kind == 'configuration' else 'code'}", f"{fix.what}{where}.{needs}"
    yield "control", finding.control


def _measured_rows(evidence: Evidence) -> Iterator[tuple[str, str]]:
    if len(evidence.groups) > 1:
        yield "largest", _largest_groups(evidence.groups)
    if evidence.tensor or evidence.input_shape:
        yield "tensor", _tensor(evidence)
    if evidence.achieved_gb_per_s is not None and evidence.bytes_per_call is not None:
        yield "moves", _movement(evidence)
    if evidence.by_batch:
        yield "by batch", _by_batch(evidence.by_batch)
    if evidence.ranks:
        yield "ranks", _arrivals(evidence.ranks)
    if evidence.host_call:
        yield "call", shown(f"{evidence.host_call} in {evidence.op}" if evidence.op else evidence.host_call)
    elif evidence.op:
        yield "op", shown(evidence.op)


def ruled_out_rows(rows: Sequence[RuledOut]) -> Iterator[tuple[str, str]]:
    """Yield the suspects of a phase, each with why it is none; what takes next to nothing is only named."""
    asked = {row.rule for row in rows if row.undecided and row.rule}
    told = [row for row in rows if not (row.undecided and _ASKED_BY.get(row.hypothesis) in asked)]
    folded = [row for row in told if not row.undecided and (row.share_of_step or 0.0) < FOLDED_SHARE]
    yield from ((row.hypothesis, ruled_out_line(row)) for row in told if row not in folded)
    if folded:
        names = ", ".join(row.hypothesis for row in folded)
        yield "also looked for", f"{names}: nothing of the kind, or less than {units.share(FOLDED_SHARE)} of the step"


def ruled_out_line(row: RuledOut) -> str:
    """Describe a suspect: its time, and why it is not the cause."""
    time = f"{units.time(row.time_us_per_step)} a step; " if row.time_us_per_step else ""
    return f"{time}{shown(row.reason)}"


def no_findings(diagnosis: Diagnosis) -> str:
    """Say that there are no findings, and whether anything was looked at."""
    return "No findings" if diagnosis.steps else "Nothing could be judged"


def unchecked_rows(diagnosis: Diagnosis) -> Iterator[tuple[list[str], str]]:
    """Yield what could not be checked, once, with the rules that lack it."""
    rules: dict[str, list[str]] = {}
    for row in diagnosis.could_not_check:
        rules.setdefault(_unchecked_line(diagnosis, row), []).append(row.rule)
    for line, of in rules.items():
        yield list(dict.fromkeys(of)), line


def _unchecked_line(diagnosis: Diagnosis, row: CouldNotCheck) -> str:
    """Describe what a trace cannot answer, and how to record one that can."""
    name = trace_name(diagnosis, row.trace)
    place = f" in {name}" if name else ""
    return f"{shown(row.missing)}{place}. To know: {row.how_to_capture}."


def folded_line(finding: Finding) -> str:
    """Name a finding that is too small for more."""
    return f"{finding.rule} ({units.time(finding.time_us_per_step)} a step, {units.share(finding.share_of_step)})"


_FIXED = 0.05
"""Times that differ by less do not grow with the batch."""
_ADDS_UP = 0.02
"""Calls that are of several kinds, or not waste as a whole, do not add up to a finding's cost: a reader multiplies."""
_BESIDE = 0.5
"""Calls that take less than this of what a finding costs are not what costs: a copy within a gap of the host's."""


def _cost(finding: Finding) -> str:
    evidence = finding.evidence
    text = f"{units.time(finding.time_us_per_step)} a step, {units.share(finding.share_of_step)} of it"
    if evidence.us_per_call is not None and evidence.calls_per_step is not None:
        calls, us = units.calls(evidence.calls_per_step), units.time(evidence.us_per_call)
        of_calls_us = evidence.calls_per_step * evidence.us_per_call
        if isclose(of_calls_us, finding.time_us_per_step, rel_tol=_ADDS_UP):
            text += f": {calls} × {us}"
        elif of_calls_us >= _BESIDE * finding.time_us_per_step:
            text += f"; {calls}{'' if evidence.calls_per_step == 1 else ', the largest'} of {us}"
    return text


def _largest_groups(groups: Sequence[Group]) -> str:
    """Say what the largest parts of a finding take: by tensor, else by kernel."""
    short = short_names(group.kernel for group in groups)
    told = [
        f"{units.time(group.time_us_per_step)} {shown(group.tensor or short[group.kernel])}"
        f" ({units.count(group.calls_per_step)} ×)"
        for group in groups[:SHOWN_GROUPS]
    ]
    more = f"; and {len(groups) - SHOWN_GROUPS} more" if len(groups) > SHOWN_GROUPS else ""
    return f"{'; '.join(told)}{more}"


def _tensor(evidence: Evidence) -> str:
    tensor, shape = evidence.tensor, str(evidence.input_shape or "")
    types = " → ".join(filter(None, (evidence.source_dtype, evidence.target_dtype)))
    return ", ".join(filter(None, (tensor, shape if shape not in (tensor or "") else None, types)))


def _arrivals(ranks: Sequence[RankArrival]) -> str:
    """Say when ranks arrive and how long their kernels take, the latest first."""
    latest_first = sorted(ranks, key=lambda each: -each.arrival_us)
    told = [
        f"{each.rank} +{units.time(each.arrival_us)}, kernel {units.time(each.kernel_us)}"
        for each in latest_first[:SHOWN_RANKS]
    ]
    more = f"; and {len(ranks) - SHOWN_RANKS} more" if len(ranks) > SHOWN_RANKS else ""
    return f"{'; '.join(told)}{more}"


def _by_batch(sizes: Sequence[AtBatch]) -> str:
    """Say what a finding's work takes at each batch size, and whether it is the same at all."""
    times = [at.time_us_per_step for at in sizes]
    told = ", ".join(f"batch {at.batch_size} {units.time(at.time_us_per_step)}" for at in sizes)
    return f"{told}{': a fixed cost' if max(times) <= (1 + _FIXED) * min(times) else ''}"


def _modules(evidence: Evidence) -> str:
    path = " / ".join(evidence.modules)
    if not evidence.layers:
        return path
    return f"layer{'' if len(evidence.layers) == 1 else 's'} {units.ranges(evidence.layers)}, such as {path}"


def _movement(evidence: Evidence) -> str:
    assert evidence.achieved_gb_per_s is not None  # noqa: S101 -- the caller checked
    text = f"{units.size(evidence.bytes_per_call or 0)} a call, {units.size(evidence.bytes_per_step or 0)} a step"
    text += f", at {units.rate(evidence.achieved_gb_per_s)}"
    shares = []
    if evidence.bandwidth_fraction is not None:
        shares.append(f"{units.share(evidence.bandwidth_fraction)} of the datasheet's rate")
    if evidence.bandwidth_fraction_measured is not None:
        shares.append(f"{units.share(evidence.bandwidth_fraction_measured)} of the measured one")
    return f"{text} ({', '.join(shares)})" if shares else text


def _what_if(diagnosis: Diagnosis, finding: Finding, what_if: WhatIf) -> str:
    of = finding.evidence.replayed_trace if finding.trace is None else finding.trace
    steps = next(s for s in diagnosis.steps if (s.trace, s.phase) == (of, finding.phase))
    today = units.time(steps.duration_us.median)
    if what_if.gain_fraction < NEGLIGIBLE_GAIN:
        text = "alone: no gain"
    else:
        step, span = what_if.step_us, what_if.gpu_span_us
        text = f"{today} → {units.time(step.expected)} ({units.time(step.low)} to {units.time(step.high)})"
        text += f", {units.share(what_if.gain_fraction)} gained"
        text += f"; GPU span {units.time(steps.gpu_span_us.median)} → {units.time(span.expected)}"
        if steps.unprofiled_duration_us is not None and what_if.unprofiled_step_us is not None:
            without = f"{units.time(steps.unprofiled_duration_us)} → {units.time(what_if.unprofiled_step_us)}"
            text += f"; without the profiler about {without}"
    if what_if.hidden_by:
        others = " and ".join(what_if.hidden_by)
        text += f"; with {others} fixed too: {today} → {units.time(what_if.step_us_others_fixed)}"
    return f"{text}. Assumes: {what_if.assumption}."
