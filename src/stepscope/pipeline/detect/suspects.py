"""The usual suspects: what each takes of the step, and why it is not the cause, or that it cannot be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope import units
from stepscope.document import RuledOut
from stepscope.model import match_elements
from stepscope.pipeline.attribute.kernel_class import UNCLASSIFIED
from stepscope.pipeline.detect.idle import Idle, idle_at_joins_us, per_step
from stepscope.pipeline.detect.needed import needed
from stepscope.pipeline.detect.registry import all_rules
from stepscope.pipeline.detect.rule import CANNOT_BE_TOLD
from stepscope.pipeline.steps.graph_launches import GRAPH_LAUNCH

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from stepscope.model import Weight
    from stepscope.pipeline.detect.rule import Case, Cause, Excluded, Rule

SMALL_SHARE = 0.1
"""What takes less than this share of the step cannot be a major cause, however slow it is."""

TOLD_SHARE = 0.01
"""What takes less of the step is not compared with the least time of its work."""

MUCH_OF_IT = 0.5
"""A class whose work needs less than this of its time is not ruled out: good kernels need more."""

MUCH_IDLE = 0.2
"""More idle time than this has a reason, and where no rule names it the host is not ruled out."""

MANY_LATE = 0.5
"""Where so many gaps end right after a launch and no rule names them, there are too few to say that launching is it."""

MOST_EXPLAINED = 0.5
"""Where findings are about more than this share of a suspect's kernels, they tell more of it."""
MOSTLY = 0.5
"""Where more of the idle time lies in launches of graphs, these are its reason."""

COLLECTIVES = "collectives"
_BY_CLASS = {
    "MoE GEMM": ("moe-gemm", "grouped or fused expert GEMM"),
    "routing": ("routing", "top-k or expert-sorting"),
    COLLECTIVES: ("collective", "collective"),
    "attention": ("attention", "fused attention"),
    "sampling": ("sampling", "sampling"),
}
_RULE_OF = {COLLECTIVES: "slow-collective", "sampling": "slow-sampling"}
_OF_COST = {"moe-gemm", "collective", "attention"}
"""Classes whose work has a least time."""
_COPIES = ("cast", "copy")
_DEQUANTISATION = "weight dequantisation"
_HOST = "host launch"
_IS_A_SUSPECT = {"slow-collective", "rank-skew", "weight-rematerialised", "launch-bound", "slow-sampling"}
"""Rules whose suspect stands here under a name of its own, or is judged by ranks side by side."""


def rule_out(
    case: Case,
    trace: int,
    time_of_class: Mapping[str, float],
    found: Mapping[str, Cause],
    silent: Mapping[str, Excluded | None],
) -> Iterator[RuledOut]:
    """Yield every suspect of a phase that no finding names, and every rule that found nothing.

    Args:
        case: the phase.
        trace: index of its trace.
        time_of_class: µs per step by kernel class.
        found: the causes of the findings, by rule.
        silent: rules that found and asked nothing, and what they say.
    """
    explained = _explained(case, found)

    def verdict(hypothesis: str, time_us: float | None, reason: str) -> RuledOut:
        share = case.measured.share(time_us) if time_us is not None and case.measured.step_us else None
        return RuledOut(
            trace=trace,
            phase=case.phase,
            hypothesis=hypothesis,
            time_us_per_step=time_us,
            share_of_step=share,
            reason=reason,
            undecided=CANNOT_BE_TOLD in reason,
        )

    for hypothesis, (kernel_class, name) in _BY_CLASS.items():
        if _RULE_OF.get(hypothesis) in found:
            continue
        time_us = time_of_class.get(kernel_class, 0.0)
        if explained.get(kernel_class, 0.0) > MOST_EXPLAINED:
            share = units.share(case.measured.share(time_us))
            yield verdict(hypothesis, time_us, f"{share} of the step; what of it is too much, the findings tell")
            continue
        none = _none_known(case, name, time_of_class)
        yield verdict(hypothesis, time_us, _by_time(case, kernel_class, time_us, none))
    if "weight-rematerialised" not in found:
        copies_us = sum(time_of_class.get(name, 0.0) * (1 - explained.get(name, 0.0)) for name in _COPIES)
        yield verdict(_DEQUANTISATION, *_dequantisation(case, time_of_class, copies_us, found))
    if "launch-bound" not in found:
        yield verdict(_HOST, case.measured.idle_us if case.complete else None, _host(case))
    left = {name: us * (1 - explained.get(name, 0.0)) for name, us in time_of_class.items()}
    for rule in all_rules():
        if rule.id in silent and rule.id not in _IS_A_SUSPECT:
            looked_at = _looked_at(rule, silent[rule.id], left)
            yield replace(verdict(rule.id.replace("-", " "), *looked_at), rule=rule.id)


def _explained(case: Case, found: Mapping[str, Cause]) -> Mapping[str, float]:
    """Return which share of each class's time is of kernels that findings are about."""
    touched = np.zeros(case.linked.kernels.height, dtype=np.bool_)
    for cause in found.values():
        if cause.change is not None:
            touched |= cause.change.touched
    time: dict[str, float] = {}
    of_findings: dict[str, float] = {}
    for group in case.groups:
        name = group.kernel_class
        time[name] = time.get(name, 0.0) + float(group.us.sum())
        of_findings[name] = of_findings.get(name, 0.0) + float(group.us[touched[group.rows]].sum())
    return {name: of_findings[name] / us if us else 0.0 for name, us in time.items()}


def _looked_at(rule: Rule, told: Excluded | None, time_of_class: Mapping[str, float]) -> tuple[float | None, str]:
    """Return the time of what a rule looked at, where that is kernels, and what came of it."""
    if told is not None:
        return told.time_us_per_step, told.reason
    if not rule.classes:
        return None, "nothing of the kind was found"
    ran = [name for name in rule.classes if time_of_class.get(name)]
    if not ran:
        return 0.0, f"no kernel of its classes ran in the step: {', '.join(rule.classes)}"
    among = ", ".join(sorted(ran, key=time_of_class.__getitem__, reverse=True))
    return sum(time_of_class[name] for name in ran), f"nothing of the kind among its kernels of {among}"


def _none_known(case: Case, name: str, time_of_class: Mapping[str, float]) -> str:
    """Say that no kernel of a kind ran; where much of the step is of no known class, that it cannot be told."""
    unknown = case.measured.share(time_of_class.get(UNCLASSIFIED, 0.0))
    if unknown < SMALL_SHARE:
        return f"no {name} kernel ran in the step"
    take = f"kernels of no known class take {units.share(unknown)}"
    return f"{CANNOT_BE_TOLD}: no {name} kernel is known by its name, but {take}"


def _by_time(case: Case, kernel_class: str, time_us: float, none: str) -> str:
    """Say what a class takes, and how much of that its work needs, or why that cannot be told."""
    step_us = case.measured.step_us
    if not time_us or not step_us:
        return none
    share = f"{units.share(time_us / step_us)} of the step"
    is_small = time_us < SMALL_SHARE * step_us
    if kernel_class in _OF_COST and time_us >= TOLD_SHARE * step_us:
        work = needed(case, kernel_class)
        if work.is_known and not is_small and work.least_us < MUCH_OF_IT * work.known_us:
            return f"{share}; {work}; whether another kernel takes less {CANNOT_BE_TOLD}"
        if work.is_known:
            return f"{share}; {work}"
        if not is_small:
            return f"{share}; whether its work needs that {CANNOT_BE_TOLD}: {work}"
    if is_small:
        return f"{share}, which is all that could be gained"
    return f"{share}; whether its work needs that {CANNOT_BE_TOLD}: no least time is known for its kernels"


def _dequantisation(
    case: Case, time_of_class: Mapping[str, float], copies_us: float, found: Collection[str]
) -> tuple[float, str]:
    """Return the time of the copies that no finding is about and of quantisation, and why they are of no weight."""
    time_us = time_of_class.get("quantise", 0.0)
    none = _none_known(case, "quantisation", time_of_class)
    kernels = _by_time(case, "quantise", time_us, none)
    copies = [(group, group.moved) for group in case.groups if group.moved and group.kernel_class in _COPIES]
    if not copies:
        return time_us, f"{kernels}; no copy of known size ran in it"
    largest = units.number(max(moved.elements_high for _, moved in copies))
    weights = [weight for weight in case.deployment.weights if weight.is_matrix]
    if not weights:
        copied = f"the largest copy moves {largest} elements; --model and --tp tell whether that is a weight"
        if "kv-pool-cast" in found:
            copied = "the largest copy is the KV pool's"
        return time_us + copies_us, f"{copied}; {kernels}" if time_us else copied
    for group, moved in copies:  # the longest first: the largest copy may be no weight, and a smaller one be one
        matches = match_elements(weights, moved.elements_low, moved.elements_high)
        if matches and group.time_us_per_step < TOLD_SHARE * case.measured.step_us:
            copied = f"the longest copy that may be of a weight takes {units.time(group.time_us_per_step)}"
            return time_us + copies_us, f"{copied}; {kernels}" if time_us else copied
        if matches:
            copied = f"a copy moves {units.number(moved.elements_high)} elements, as many as {matches[0].name} has"
            return time_us + group.time_us_per_step, f"{CANNOT_BE_TOLD}: {copied}"
    first, second = sorted(weights, key=lambda weight: -weight.elements)[:2]
    tried = f"neither {_sized(first)} nor {_sized(second)}, nor any other weight's"
    copied = f"the largest copy moves {largest} elements: {tried}"
    return time_us + copies_us, f"{copied}; {kernels}" if time_us else copied


def _sized(weight: Weight) -> str:
    return f"{weight.name}'s {units.number(weight.elements)}"


def _host(case: Case) -> str:
    if not case.complete:
        return f"{CANNOT_BE_TOLD}: the trace is incomplete, so a gap may be work that was not recorded"
    measured = case.measured
    if not measured.gaps:
        return "the GPU has no gaps in the step"
    steps = len(case.step_indices)
    gaps = units.count(round(measured.gaps / steps))
    late = f"{units.count(round(measured.late_gaps / steps))} of its {gaps} gaps end right after"
    idle = f"the GPU is idle for {units.share(measured.idle_share)} of the step"
    if measured.idle_share <= MUCH_IDLE:
        return f"{idle}, and {late} a launch"
    return _much_idle(case, idle, gaps, late)


def _much_idle(case: Case, idle: str, gaps: str, late: str) -> str:
    measured = case.measured
    joined_us = idle_at_joins_us(case)
    if joined_us and measured.idle_us - joined_us <= MUCH_IDLE * measured.step_us:
        return f"{idle}, {units.time(joined_us)} of it while the thread that launches waits for one that computes"
    reason = f"but only {late} a launch; something else on the host may hold it up"
    if measured.late_gaps >= MANY_LATE * measured.gaps:
        reason = f"but with {gaps} gaps there are too few launches to blame them"
    elif _in_graph_launches_us(case) > MOSTLY * measured.idle_us:
        reason = "mostly while the host launches a graph, which the profiler makes slower"
    return f"{CANNOT_BE_TOLD}: {idle}, {reason}"


def _in_graph_launches_us(case: Case) -> float:
    """Return how long a step the GPU does nothing while a call of the host launches a graph."""
    calls = case.linked.trace.launches
    calls = calls.filter(calls["name"].cast(pl.String).str.contains(GRAPH_LAUNCH))
    idle, start = Idle.of(case), calls["start_ns"].to_numpy()
    covered = idle.between(start, start + calls["duration_ns"].to_numpy())
    return per_step(idle.step_at(start), covered, idle.timed(case.step_indices)) / 1e3
