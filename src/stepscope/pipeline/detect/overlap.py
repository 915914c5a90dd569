"""One cause, one finding: what several rules found is reported by the one that explains more."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope import units
from stepscope.pipeline.detect.replays import Replays, can_predict

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from stepscope.pipeline.detect.rule import Case, Cause
    from stepscope.pipeline.whatif import Change

    Floats = NDArray[np.float64]

PART_SHARE = 0.9
"""A cause of which another one covers this share of the GPU time is a part of that one."""


def explained(case: Case, causes: Mapping[str, Cause], general: Collection[str]) -> dict[str, Cause]:
    """Return the causes that are no part of another one; that one names its parts.

    Args:
        case: the phase.
        causes: by rule.
        general: rules that leave the same work, or idle time, to those which find something more special in it.
    """
    changes = {rule: cause.change for rule, cause in causes.items() if cause.change is not None and not cause.is_idle}
    part_of = _parts_of_work(case, changes, general)
    notes = {
        part: f"Part of it is what {part} finds: {units.time(causes[part].time_us_per_step)} a step."
        for part in part_of
    }
    if can_predict(case):
        replays = Replays.of(case, {rule: cause for rule, cause in causes.items() if cause.is_idle})
        of_idle = _parts_of_idle(replays, general)
        notes |= {part: _of_the_same_idle_time(replays, part) for part in of_idle}
        part_of |= of_idle
    kept = {rule: cause for rule, cause in causes.items() if rule not in part_of}
    for part, rule in part_of.items():
        kept[rule] = replace(kept[rule], notes=[*kept[rule].notes, notes[part]])
    return kept


def _parts_of_work(case: Case, changes: Mapping[str, Change], general: Collection[str]) -> dict[str, str]:
    """Return for each rule whose GPU work another one covers that other one."""
    counted = np.isin(case.steps.step_of_kernel, case.step_indices)  # some rules look at no other steps
    duration = np.where(counted, case.linked.kernels["duration_ns"].to_numpy(), 0)
    time = {rule: int(duration[change.touched].sum()) for rule, change in changes.items()}
    part_of: dict[str, str] = {}
    for rule in sorted(changes, key=lambda rule: (time[rule], rule not in general)):
        wider = [
            other
            for other, change in changes.items()
            if other != rule
            and other not in part_of
            and (other not in general or rule in general or time[rule] < PART_SHARE * time[other])
            and time[rule]
            and float(duration @ _covered(changes[rule], change)) >= PART_SHARE * time[rule]
        ]
        if wider:
            part_of[rule] = max(wider, key=lambda other: (time[other], other not in general))
    return part_of


def _covered(part: Change, whole: Change) -> Floats:
    """Return how much of each kernel that one change touches another one covers; shape [kernels].

    Where both only shorten a kernel both hold: factors multiply, so that the other covers what it takes away, and parts
    of the time add up.
    """
    both = (part.touched & whole.touched).astype(np.float64)
    left = 1.0 if whole.factor is None else whole.factor
    covered: Floats = both * np.where(part.removed | whole.removed, 1.0, 1.0 - left)
    return covered


def _parts_of_idle(replays: Replays, general: Collection[str]) -> dict[str, str]:
    """Return for each rule that counts idle time another one without which that time is gone too.

    Where each is gone with the other, the one that gains more remains, unless it is general.
    """
    part_of: dict[str, str] = {}
    if len(replays.changes) > 1:
        by_gain = sorted(replays.changes, key=replays.gain_us)
        for rule in sorted(by_gain, key=lambda rule: rule not in general):
            for other in reversed(by_gain):
                if other != rule and other not in part_of and replays.is_gone_with(rule, other):
                    part_of[rule] = other
                    break
    return part_of


def _of_the_same_idle_time(replays: Replays, part: str) -> str:
    gain = units.time(replays.gain_us(part))
    return f"The same idle time is what {part} finds; without that alone the step is {gain} shorter."
