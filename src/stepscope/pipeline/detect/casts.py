"""Evidence that rules about casts share: one cast group as a document's fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope import units
from stepscope.document import Evidence, Group
from stepscope.pipeline.whatif import Change
from stepscope.trace import intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.cost import Transfer
    from stepscope.pipeline.detect.rule import Case

INSTRUCTION_BOUND = 0.5
"""A large copy that reaches less than this share of the memory rate is held up by its instructions."""
MIN_US_TO_JUDGE = 20.0
"""A shorter kernel reaches no memory rate, however good: its start and end take a µs or two, its ramps as long."""
_INSTRUCTION_BOUND_REASON = "most likely it is bound by instructions, not by memory"

MIN_BYTES = 4 << 20
"""A smaller cast takes about a µs: not worth a reader's time, and no pool that matters is so small."""


@dataclass(frozen=True, slots=True)
class Casts:
    """Groups of casts that are one cause, the largest first, and what each call of the largest moves."""

    groups: Sequence[WorkGroup]
    tensors: Sequence[str | None]
    """The name of each group's tensor."""
    transfer: Transfer
    shape: Sequence[int] | None


def cast_evidence(case: Case, casts: Casts) -> Evidence:
    """Return the evidence of casts."""
    largest, transfer = casts.groups[0], casts.transfer
    rate = transfer.achieved_gb_per_s(largest.us_per_call)
    peak = case.gpu.memory_gb_per_s if case.gpu else None
    measured = case.gpu.memory_measured_gb_per_s if case.gpu else None
    return Evidence(
        op=largest.op,
        kernel=largest.kernel,
        calls_per_step=largest.calls_per_step,
        us_per_call=largest.us_per_call,
        input_shape=list(casts.shape) if casts.shape else None,
        source_dtype=transfer.source_dtype,
        target_dtype=transfer.target_dtype,
        bytes_per_call=transfer.bytes,
        bytes_per_step=round(transfer.bytes * largest.calls_per_step),
        achieved_gb_per_s=rate,
        bandwidth_fraction=rate / peak.value if peak and rate is not None else None,
        bandwidth_fraction_measured=rate / measured.value if measured and rate is not None else None,
        tensor=casts.tensors[0],
        groups=[
            Group(
                kernel=group.kernel,
                tensor=tensor,
                shape=list(group.moved.shape) if group.moved and group.moved.shape else None,
                calls_per_step=group.calls_per_step,
                time_us_per_step=group.time_us_per_step,
            )
            for group, tensor in zip(casts.groups, casts.tensors, strict=True)
        ],
    )


def slow_kernel_note(evidence: Evidence) -> list[str]:
    """Say that the cast's own kernel is slow, where it is: then the waste is twofold."""
    reached = evidence.bandwidth_fraction_measured or evidence.bandwidth_fraction
    if reached is None or evidence.achieved_gb_per_s is None or reached >= INSTRUCTION_BOUND:
        return []
    if evidence.us_per_call is None or evidence.us_per_call < MIN_US_TO_JUDGE:
        return []
    rate, share = units.rate(evidence.achieved_gb_per_s), units.share(reached)
    twofold = "The waste is twofold: the cast should not run, and its kernel is slow"
    return [f"{twofold}. It reaches only {rate}, {share} of what this GPU can move: {_INSTRUCTION_BOUND_REASON}."]


def covered_us_per_step(case: Case, groups: Sequence[WorkGroup]) -> float:
    """Return the µs of a step that any kernel of the groups covers: median over the steady steps."""
    rows = np.concatenate([group.rows for group in groups])
    step = np.concatenate([group.step_of_row for group in groups])
    start = case.linked.kernels["start_ns"].to_numpy()[rows]
    end = start + case.linked.kernels["duration_ns"].to_numpy()[rows]
    steps = list(case.step_indices)
    covered = intervals.covered_by_group(start, end, step, max(*steps, int(step.max())) + 1)
    return float(np.median(covered[steps])) / 1e3


def removal(case: Case, groups: Sequence[WorkGroup]) -> Change:
    """Return the change that takes all kernels of the groups out."""
    removed = np.zeros(case.linked.kernels.height, dtype=np.bool_)
    for group in groups:
        removed[group.rows] = True
    return Change(removed)
