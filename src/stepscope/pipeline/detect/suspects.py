"""The usual suspects: what each takes of the step, and why it is not the cause, or that it cannot be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import units
from stepscope.document import RuledOut
from stepscope.model import match_elements

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from stepscope.pipeline.detect.rule import Case

SMALL_SHARE = 0.1
"""What takes less than this share of the step cannot be a major cause, however slow it is."""

_BY_CLASS = {
    "MoE GEMM": ("moe-gemm", "grouped or fused expert GEMM"),
    "routing": ("routing", "top-k or expert-sorting"),
    "collectives": ("collective", "collective"),
    "attention": ("attention", "fused attention"),
    "sampling": ("sampling", "sampling"),
}
_DEQUANTISATION = "weight dequantisation"
_HOST = "host launch"


def rule_out(case: Case, trace: int, time_of_class: Mapping[str, float], found: Collection[str]) -> Iterator[RuledOut]:
    """Yield every suspect of a phase that no finding names.

    Args:
        case: the phase.
        trace: index of its trace.
        time_of_class: µs per step by kernel class.
        found: rules that have a finding.
    """
    step_us = case.measured.step_us

    def verdict(hypothesis: str, time_us: float | None, reason: str) -> RuledOut:
        share = time_us / step_us if time_us is not None and step_us else None
        return RuledOut(
            trace=trace,
            phase=case.phase,
            hypothesis=hypothesis,
            time_us_per_step=time_us,
            share_of_step=share,
            reason=reason,
        )

    for hypothesis, (kernel_class, name) in _BY_CLASS.items():
        time_us = time_of_class.get(kernel_class, 0.0)
        yield verdict(hypothesis, time_us, _by_time(time_us, step_us, f"no {name} kernel ran in the step"))
    yield verdict(_DEQUANTISATION, *_dequantisation(case, time_of_class))
    if "launch-bound" not in found:
        yield verdict(_HOST, case.measured.idle_us, _host(case))


def _by_time(time_us: float, step_us: float, none: str) -> str:
    if not time_us:
        return none
    share = units.share(time_us / step_us)
    if time_us < SMALL_SHARE * step_us:
        return f"{share} of the step: even without it the step would be at most {units.time(time_us)} shorter"
    return f"{share} of the step; whether that is more than its work needs cannot be told yet"


def _dequantisation(case: Case, time_of_class: Mapping[str, float]) -> tuple[float, str]:
    time_us = time_of_class.get("quantise", 0.0)
    copies = [group for group in case.groups if group.moved and group.kernel_class in {"cast", "copy"}]
    weights = {weight.name: weight for weight in case.deployment.weights}
    largest = max(copies, key=lambda group: group.moved.elements_high if group.moved else 0, default=None)
    if largest is None or largest.moved is None:
        return time_us, _by_time(
            time_us, case.measured.step_us, "no quantisation kernel and no copy of known size ran in the step"
        )
    elements = f"{largest.moved.elements_high / 1e6:,.1f} M elements"
    if "w13" not in weights:
        return time_us, f"the largest copy moves {elements}; --model and --tp tell whether that is a weight"
    match = match_elements(case.deployment.weights, largest.moved.elements_low, largest.moved.elements_high)
    if match is not None:
        return (
            largest.time_us_per_step,
            f"cannot be told: the largest copy moves {elements}, as many as {match.name} has",
        )
    w13, w2 = weights["w13"].elements / 1e6, weights["w2"].elements / 1e6
    return (
        time_us,
        f"the largest copy moves {elements}: neither w13's {w13:,.1f} M nor w2's {w2:,.1f} M, nor any other weight's",
    )


def _host(case: Case) -> str:
    measured = case.measured
    if not measured.gaps:
        return "the GPU has no gaps in the step"
    late = f"{measured.late_gaps:,} of {measured.gaps:,} gaps end right after a launch"
    return f"the GPU is idle for {units.share(measured.idle_share)} of the step, and {late}"
