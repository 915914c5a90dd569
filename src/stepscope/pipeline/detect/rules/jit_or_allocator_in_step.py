"""The driver allocates memory or loads code, or the host pauses, within steps that serve.

## What it looks like
`cudaMalloc` and `cudaFree` in every step, with the GPU idle meanwhile: an allocator whose cache is emptied. Or a rare
step that takes far longer than the others: in it `cuModuleLoad*` (a kernel compiled or loaded at its first use),
`cudaMalloc`, or a stretch in which the host makes no call at all (Python's garbage collector, another process).

## Why it happens
`cudaFree` waits for the GPU, `cudaMalloc` takes a tenth of a ms and more: caching allocators exist to avoid both, until
someone calls `empty_cache()` in the loop or memory is so short that the cache is given back. Kernels compile for shapes
that the warm-up did not cover. The collector runs when enough objects were made, and walks all of them.

## What looks the same and is harmless
Warm-up, the first step of a recording, and the first of a new size: what is loaded and allocated there stays. Calls
during which the GPU has work. A pause after the last step of a batch: nobody asked.

## Control
Leave out `empty_cache()`, warm up the shape, or turn the collector off (`gc.disable()`), and run as many steps: the
slowest must come down to the median; where every step makes such calls, the median must fall.

## Fixes
- configuration: Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, and leave the cache memory to grow into. Needs
  a restart.
- code: Take `torch.cuda.empty_cache()` out of the step.
- code: Run every shape that is served once, before the server takes requests.
- code: Call `gc.collect()` and `gc.freeze()` once the server has started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope import units
from stepscope.document import Confidence
from stepscope.pipeline.detect.driver_calls import ALLOCATES, LOADS, driver_calls, driver_evidence
from stepscope.pipeline.detect.explanation import fixes_of
from stepscope.pipeline.detect.idle import Idle, per_step
from stepscope.pipeline.detect.origin import functions_during, your_line
from stepscope.pipeline.detect.outliers import Outliers
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.whatif import Change, time_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.document import Fix

SEGMENTS, KEEP_CACHE, WARM_UP, FREEZE = fixes_of(__doc__)
MIN_SHARE = 0.01
"""Less of the step is not worth a reader's time."""
MIN_STEPS = 2
"""What stands in a single step may be its warm-up."""
EXPLAINS = 0.5
"""So much of what a long step takes beyond the median must lie in such calls, or in a pause."""

ASSUMPTION = (
    "the allocator keeps its memory, so none of these calls is made; the other launches stay as recorded, profiler"
    " overhead included"
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find such calls in every step, or what makes rare steps long."""
    if not case.complete:
        return
    idle = Idle.of(case)
    calls = driver_calls(case.linked.trace)
    cause = _in_every_step(case, idle, calls) or _in_rare_steps(case, idle, calls)
    if cause is not None:
        yield cause


def _in_every_step(case: Case, idle: Idle, calls: pl.DataFrame) -> Cause | None:
    start = calls["start_ns"].to_numpy()
    end = start + calls["duration_ns"].to_numpy()
    if len(case.step_indices) < MIN_STEPS or not set(case.step_indices) <= set(case.steps.at(start).tolist()):
        return None
    step, idle_ns = idle.step_at(start), idle.between(start, end)
    steps = idle.timed(case.step_indices)
    idle_us = per_step(step, idle_ns, steps) / 1e3
    if not idle_us or idle_us < MIN_SHARE * case.measured.step_us:
        return None
    mine = np.isin(step, case.steps.phases()[case.phase])
    longest = calls.row(int(np.argmax(np.where(np.isin(step, steps), end - start, -1))), named=True)
    frames = functions_during(case, longest["thread"], longest["start_ns"], longest["start_ns"] + 1)
    evidence = driver_evidence(calls.filter(pl.Series(np.isin(step, steps))), len(steps), frames)
    number = units.count(sum(group.calls_per_step for group in evidence.groups))
    return Cause(
        title=f"Every step makes {number} calls to allocate or load, and the GPU is idle for {units.time(idle_us)}",
        confidence=Confidence.HIGH,
        time_us_per_step=idle_us,
        evidence=evidence,
        change=Change(
            np.zeros(case.linked.kernels.height, dtype=np.bool_), host_gone=time_of(calls.filter(pl.Series(mine)))
        ),
        assumption=ASSUMPTION,
        fixes=list(_fixes(calls, your_line(frames))),
    )


def _in_rare_steps(case: Case, idle: Idle, calls: pl.DataFrame) -> Cause | None:
    long = Outliers.of(case, idle)
    in_calls = long.covered(calls)
    by_calls = in_calls >= EXPLAINS * long.excess
    by_pause = ~by_calls & (long.pause >= EXPLAINS * long.excess)
    explained = by_calls | by_pause
    lost_us = float(long.excess[explained].sum()) / 1e3 / (len(case.step_indices) + long.step.size)
    if not explained.any() or lost_us < MIN_SHARE * case.measured.step_us:
        return None
    during = np.isin(idle.step_at(calls["start_ns"].to_numpy()), long.step[by_calls])
    calls = calls.filter(pl.Series(during))
    steps, few = len(case.step_indices) + long.step.size, int(explained.sum())
    rare = f"{few} of {steps} steps {'takes' if few == 1 else 'take'}"
    longest = units.time(float(long.excess[explained].max()) / 1e3)
    what = "the driver allocates or loads code" if by_calls.any() else "the host makes no call at all"
    return Cause(
        title=f"{rare} up to {longest} longer than the others: {what}",
        confidence=Confidence.HIGH if by_calls.any() else Confidence.LOW,
        notes=_pause_notes(float(long.pause[by_pause].max()) / 1e3) if by_pause.any() else [],
        time_us_per_step=lost_us,
        evidence=driver_evidence(calls, steps, ()),
        change=None,
        fixes=list(_fixes(calls, None, paused=bool(by_pause.any()))),
    )


def _pause_notes(us: float) -> list[str]:
    what = f"For {units.time(us)} of such a step no thread calls the runtime or an op, and the GPU has nothing to do"
    return [
        f"{what}. Python's collector does that, or a compiler, or a host that is busy otherwise: nothing tells which."
    ]


def _fixes(calls: pl.DataFrame, where: str | None, *, paused: bool = False) -> Iterator[Fix]:
    names = calls["name"].cast(pl.String)
    if names.str.contains(ALLOCATES).any():
        yield from (SEGMENTS, replace(KEEP_CACHE, where=where))
    if names.str.contains(LOADS).any():
        yield WARM_UP
    if paused:
        yield FREEZE


RULE = Rule(
    "jit-or-allocator-in-step",
    __doc__,
    check,
    needs=("GPU kernels", "launches on the host", "several steps"),
)
