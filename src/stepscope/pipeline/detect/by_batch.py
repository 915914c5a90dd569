"""What a finding's work takes at each batch size at hand: whether it is a fixed cost, or grows with the batch."""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from stepscope.document import AtBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.document import Diagnosis, Finding
    from stepscope.pipeline.detect.rule import Case, Cause

SAME = 0.05
"""Times that differ by less are the same: what a cause costs, and what its kernels take."""


def within(case: Case, cause: Cause) -> list[AtBatch]:
    """Return what a cause's kernels take a step at each batch size of its phase's steps; none where that is one size.

    Only of causes that cost what their kernels take, and of steps that run as many of them: others may run the like
    in kernels of another shape.
    """
    if cause.change is None or cause.is_idle:
        return []
    rows = np.flatnonzero(cause.change.touched & (case.steps.step_of_kernel >= 0))
    step, count = case.steps.step_of_kernel[rows], len(case.steps.steps)
    us = np.bincount(step, case.linked.kernels["duration_ns"].to_numpy()[rows], minlength=count) / 1e3
    calls = np.bincount(step, minlength=count)
    steady = list(case.step_indices)
    if not isclose(float(np.median(us[steady])), cause.time_us_per_step, rel_tol=SAME):
        return []
    of_size: dict[int, list[int]] = {}
    for index in case.steps.phases()[case.phase]:
        size = case.steps.steps[index].batch_size
        if size is not None and calls[index] == np.median(calls[steady]):
            of_size.setdefault(size, []).append(index)
    if len(of_size) < 2:
        return []
    return [AtBatch(batch_size=size, time_us_per_step=float(np.median(us[of_size[size]]))) for size in sorted(of_size)]


def across(parts: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Return diagnoses of several traces in which each finding has what the same work takes at others' batch sizes."""
    by_work: dict[object, dict[int, float]] = {}
    for part in parts:
        sizes = {step.phase: step.batch_size for step in part.steps}
        for finding in part.findings:
            for at in _of(finding, sizes):
                by_work.setdefault(_work(finding), {}).setdefault(at.batch_size, at.time_us_per_step)
    return [replace(part, findings=[_told(finding, by_work) for finding in part.findings]) for part in parts]


def _told(finding: Finding, by_work: Mapping[object, Mapping[int, float]]) -> Finding:
    at = by_work.get(_work(finding), {})
    if len(at) < 2:
        return finding
    told = [AtBatch(batch_size=size, time_us_per_step=at[size]) for size in sorted(at)]
    return replace(finding, evidence=replace(finding.evidence, by_batch=told))


def _of(finding: Finding, sizes: Mapping[str, int | None]) -> Iterator[AtBatch]:
    """Yield what a finding's work takes, if it costs what its kernels take."""
    evidence, size = finding.evidence, sizes.get(finding.phase)
    yield from evidence.by_batch
    if evidence.by_batch or size is None or evidence.kernel is None:
        return
    taken = (evidence.calls_per_step or 0.0) * (evidence.us_per_call or 0.0)
    if isclose(taken, finding.time_us_per_step, rel_tol=SAME):
        yield AtBatch(batch_size=size, time_us_per_step=finding.time_us_per_step)


def _work(finding: Finding) -> object:
    """Return what tells the work of a finding in one trace from that in another."""
    evidence = finding.evidence
    shape = tuple(evidence.input_shape or ())
    return finding.rule, finding.phase, evidence.kernel, evidence.tensor, shape, evidence.calls_per_step
