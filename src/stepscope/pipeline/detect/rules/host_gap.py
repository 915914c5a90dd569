"""The GPU waits between two steps while the host prepares the next one.

## What it looks like
A gap on the GPU between the last kernel of a step and the first of the next, in every step, during which the thread
that launches runs Python: it schedules, builds tables, sends them. Often a large copy from pageable memory ends it. The
launch of the next step itself is not part of it.

## Why it happens
The host reads the token, and only then prepares the next step. What it prepares grows with the largest batch or the
longest context that is admitted, not with what is live, or is built in Python element by element.

## What looks the same and is harmless
A server without requests: the gap is as long as nobody asks. It stands where a batch ends, or its functions poll and
sleep. The launch of a graph, which the profiler makes several ms long. A step whose next one was launched in time.

## Control
Run the same step again with what was prepared once (the same tables, no rebuilding), and measure without the profiler.
If the step does not get shorter by the gap, it waited for something else.

## Fixes
- configuration: Let the scheduler prepare the next step while the GPU runs this one (SGLang: drop
  `--disable-overlap-schedule`; vLLM: `--async-scheduling`). Needs a restart.
- code: Prepare only what the live requests need, in numpy or on the GPU, keep what does not change, and send it from
  pinned memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope import units
from stepscope.document import Confidence, Evidence, Frame
from stepscope.pipeline.detect.between import Between
from stepscope.pipeline.detect.driver_calls import driver_calls
from stepscope.pipeline.detect.explanation import fixes_of
from stepscope.pipeline.detect.idle import Idle, per_step
from stepscope.pipeline.detect.origin import functions_during, your_line
from stepscope.pipeline.detect.replays import Replays, can_predict
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.detect.syncs import Syncs
from stepscope.pipeline.whatif import Change, time_of
from stepscope.trace import intervals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

MIN_SHARE = 0.10
"""Some work between steps is normal: a step of which a reported engine spent 7.6% so was called healthy."""
MIN_US = 100.0
"""Nor below this: a scheduler takes as long to hand out a step."""
OVERLAP, PREPARE_LESS = fixes_of(__doc__)
REQUESTS_RUN = {"decode", "mixed"}
"""Phases in which the next step is due at once: what decodes is not done."""
MIN_WORK = 0.5
"""In other phases so much of the gap the thread must be seen to work, else there may have been no request."""
MOST_PAUSE = 0.5
"""A thread that listens for more of the gap waits for requests, whatever the phase."""
WAITS = "hidden-sync"
"""The rule about waits, which is more special: the gap after a wait is its gap, as far as the wait caused it."""
LARGE_BYTES = 64 << 10
"""A smaller upload is of a few numbers for each request."""

ASSUMPTION = (
    "the host needs no time between the steps: what it prepares is ready before (overlapped, kept, or as small as the"
    " live requests), and it does not wait for the token; launches cost what they cost"
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:
    """Find gaps between steps that the host's work fills."""
    if not case.complete:
        return
    trace, between = case.linked.trace, Between.of(case)
    uploads = _uploads(case, between)
    change = _change(case, between, uploads)
    idle = _idle(case, found, change)
    gap_ns = idle.between(between.done, between.host_end)
    works = between.works(trace)
    is_pause = between.listens(trace) > MOST_PAUSE
    if case.phase not in REQUESTS_RUN:
        is_pause |= works < MIN_WORK
    gap_ns = np.where(is_pause, 0, gap_ns)
    steps = sorted(set(case.step_indices) & set(between.step.tolist()))
    if not steps:
        return
    gap_us = per_step(between.step, gap_ns, steps) / 1e3
    if gap_us < max(MIN_SHARE * case.measured.step_us, MIN_US):
        return
    longest = int(np.argmax(np.where(np.isin(between.step, steps), gap_ns, -1)))
    frames = functions_during(
        case, int(between.thread[longest]), int(between.done[longest]), int(between.host_end[longest])
    )
    evidence = _evidence(case, uploads, len(steps), frames)
    prepare_less = replace(PREPARE_LESS, where=your_line(frames))
    yield Cause(
        title=f"The GPU is idle for {units.time(gap_us)} between steps while the host prepares the next one",
        confidence=Confidence.LOW if case.has_stacks else Confidence.MEDIUM,
        notes=list(_notes(case, float(works[longest]), evidence)),
        time_us_per_step=gap_us,
        evidence=evidence,
        change=change,
        assumption=ASSUMPTION,
        fixes=(OVERLAP, prepare_less) if case.phase in REQUESTS_RUN else (prepare_less,),
        is_idle=True,
    )


def _idle(case: Case, found: Mapping[str, Cause], change: Change) -> Idle:
    """Return the gaps that other rules do not judge: driver calls, and what a wait caused that costs time anyway.

    A wait that costs nothing once the host prepares nothing is of the same gap (`overlap.py` names it).
    """
    idle = Idle.of(case)
    left, waits = idle.without(*time_of(driver_calls(case.linked.trace))[:, 1:].T), found.get(WAITS)
    if waits is None or waits.change is None:
        return left
    replays = Replays(case, {WAITS: waits.change, RULE.id: change})
    if can_predict(case) and replays.is_gone_with(WAITS, RULE.id):
        return left
    syncs = Syncs.of(case, idle)
    caused, gap = syncs.caused(case, waits.change.host_gone), idle.gap_at(syncs.end)
    start, caused = idle.start[gap[gap >= 0]], caused[gap >= 0]
    return left.without(start, start + caused)


def _uploads(case: Case, between: Between) -> Ints:
    """Return the large copies to the GPU that stand between the steps, as rows of the kernels."""
    kernels = case.linked.kernels
    is_upload = kernels["name"].cast(pl.String).str.contains("HtoD", literal=True) & (kernels["bytes"] >= LARGE_BYTES)
    rows = np.flatnonzero(is_upload.fill_null(value=False).to_numpy())
    if not between.step.size:
        return rows[:0]
    at = kernels["start_ns"].to_numpy()[rows]
    pair = np.searchsorted(between.done, at, side="right") - 1
    return rows[(pair >= 0) & (at < between.begin[pair])]


def _change(case: Case, between: Between, uploads: Ints) -> Change:
    """Return the change by which the host takes no time from the last launch of a step to the first of the next.

    But what calls of the driver take, which another rule judges.
    """
    removed = np.zeros(case.linked.kernels.height, dtype=np.bool_)
    removed[uploads] = True
    driver = time_of(driver_calls(case.linked.trace))
    gone = [np.zeros((0, 3), dtype=np.int64)]
    for thread in np.unique(between.thread).tolist():
        mine, others = between.thread == thread, driver[driver[:, 0] == thread, 1:].T
        start, end = intervals.difference(between.host_start[mine], between.host_end[mine], *others)
        gone.append(np.stack((np.full(start.shape, thread), start, end), axis=1))
    return Change(removed, host_gone=np.concatenate(gone))


def _evidence(case: Case, uploads: Ints, steps: int, frames: list[Frame]) -> Evidence:
    if not uploads.size:
        return Evidence(frames=frames)
    kernels = case.linked.kernels[uploads]
    largest = int(np.argmax(kernels["bytes"].to_numpy()))
    op = case.linked.op_of(int(uploads[largest]))
    size = int(kernels["bytes"][largest])
    return Evidence(
        op=None if op is None else str(op[0].ops["name"][op[1]]),
        kernel=str(kernels["name"][largest]),
        calls_per_step=uploads.size / steps,
        us_per_call=float(np.median(kernels["duration_ns"].to_numpy())) / 1e3,
        bytes_per_call=size,
        bytes_per_step=round(int(kernels["bytes"].sum()) / steps),
        frames=frames,
    )


def _notes(case: Case, works: float, evidence: Evidence) -> Iterator[str]:
    if works < MIN_WORK:
        yield (
            f"Of the longest gap {units.share(works)} is ops or calls; what fills the rest was not recorded. That it is"
            " the host's work follows from the phase: the same requests go on."
        )
    if evidence.bytes_per_call is not None:
        yield f"A copy of {units.size(evidence.bytes_per_call)} from the host's memory is part of it."
    if case.has_stacks:
        yield "The trace was recorded with Python stacks, which make Python slow: without them the gap is shorter."


RULE = Rule(
    "host-gap",
    __doc__,
    check,
    needs=("GPU kernels", "launches on the host", "several steps"),
    runs_last=True,
    is_general=True,
)
