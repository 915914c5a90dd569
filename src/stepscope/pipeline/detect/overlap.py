"""One cause, one finding: work that several rules found is reported by the one that explains more."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope import units

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from stepscope.pipeline.detect.rule import Case, Cause

    Bools = NDArray[np.bool_]

PART_SHARE = 0.9
"""A cause of which another one covers this share of the GPU time is a part of that one."""


def explained(case: Case, causes: Mapping[str, Cause], general: Collection[str]) -> dict[str, Cause]:
    """Return the causes that are no part of another one; that one names its parts.

    Args:
        case: the phase.
        causes: by rule.
        general: rules that leave the same work to those which find something more special in it.
    """
    counted = np.isin(case.steps.step_of_kernel, case.step_indices)  # some rules look at no other steps
    work = {rule: cause.change.touched & counted for rule, cause in causes.items() if cause.change is not None}
    duration = case.linked.kernels["duration_ns"].to_numpy()
    time = {rule: int(duration[rows].sum()) for rule, rows in work.items()}
    part_of: dict[str, str] = {}
    for rule in sorted(work, key=lambda rule: (time[rule], rule not in general)):
        wider = [
            other
            for other, rows in work.items()
            if other != rule
            and other not in part_of
            and time[rule]
            and int(duration[rows & work[rule]].sum()) >= PART_SHARE * time[rule]
        ]
        if wider:
            part_of[rule] = max(wider, key=lambda other: (time[other], other not in general))
    kept = {rule: cause for rule, cause in causes.items() if rule not in part_of}
    for part, rule in part_of.items():
        whole = kept[rule]
        us = units.time(causes[part].time_us_per_step)
        kept[rule] = replace(whole, notes=[*whole.notes, f"Part of it is what {part} finds: {us} a step."])
    return kept
