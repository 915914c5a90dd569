"""The GPU waits for the host: each kernel is launched only just before it runs.

## What it looks like
The GPU is idle for much of the step, and its gaps end right after a launch. With other waste in the step the gaps can
be filled: then the host shows as the next limit once that waste is gone.

## Why it happens
Launching a kernel costs the host several µs, a small decode step has thousands of kernels, and Python runs between
them. Without a CUDA graph the host pays that in every step.

## What looks the same and is harmless
A trace recorded for its names, eager and with Python stacks: the profiler itself makes the host slow (about 4 µs an
op), and the same server without it may be fine. Few gaps that are long are something else: a host that prepares the
next batch, a synchronisation, a transfer. So are those in which the thread that launches waits for one that computes
on the CPU, experts that are kept there for one: it would wait without the launches, too.

## Control
Measure tokens/s without the profiler, with and without CUDA graphs; if they do not differ, this is not the limit.

## Fixes
- configuration: Run decode in CUDA graphs (SGLang: drop `--disable-cuda-graph`, raise `--cuda-graph-max-bs` above the
  batch; vLLM: drop `--enforce-eager`). Needs a restart, and memory for the graphs.
- code: Capture the step in a `torch.cuda.CUDAGraph` and replay it; or fuse small kernels, and take Python out of the
  loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope import units
from stepscope.document import Confidence, Evidence
from stepscope.pipeline.detect.casts import removal
from stepscope.pipeline.detect.explanation import fixes_of
from stepscope.pipeline.detect.idle import idle_at_joins_us
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.whatif import GRAPH_GAP_NS, Change

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import polars as pl

    from stepscope.pipeline.whatif import Replayed

SERVER_GRAPHS, OWN_GRAPH = fixes_of(__doc__)
MIN_IDLE_SHARE = 0.2
"""Below this a step is not bound by the host: some idle time is normal between steps."""
MIN_LATE_SHARE = 0.5
"""So many of the gaps, counted, must end right after a launch; else something other than launching makes them."""
MIN_GAPS = 20
"""Fewer gaps a step say nothing about launching: a step has hundreds of kernels."""
SERVED = {"prefill", "decode", "mixed"}
"""Phases that only a server's annotations tell."""

ASSUMPTION = (
    f"every step's work is launched ahead, as one CUDA graph, with {GRAPH_GAP_NS / 1e3} µs between kernels; the host"
    " costs nothing"
)
INCOMPLETE = Unchecked(
    "how long the GPU idles: the trace is incomplete, so a gap may be work that was not recorded",
    "record again, until the trace's warnings are gone",
)
NO_LAUNCHES = Unchecked(
    "what the GPU waits for: its work has no launches",
    'record the host too (torch: ProfilerActivity.CPU; SGLang: "activities": ["CPU", "GPU"])',
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:
    """Find steps that wait for launches, as they are or once the largest other cause is gone."""
    if not case.complete:
        yield INCOMPLETE
        return
    measured = case.measured
    if measured.idle_share > MIN_IDLE_SHARE and _launches(case).is_empty():
        yield NO_LAUNCHES
        return
    hidden_by, joined_us = None, idle_at_joins_us(case)
    if not _waits_for_host(case, measured, joined_us):
        recurring = [rule for rule, cause in found.items() if cause.change is not None]
        if not recurring:
            return
        hidden_by = max(recurring, key=lambda rule: found[rule].time_us_per_step)
        measured = case.timeline.replay(case.step_indices, found[hidden_by].change)
        if not _waits_for_host(case, measured, joined_us):
            return
    late = measured.late_gaps / measured.gaps
    steps = len(case.step_indices)
    late_gaps, all_gaps = (units.count(round(number / steps)) for number in (measured.late_gaps, measured.gaps))
    gaps = f"{late_gaps} of {all_gaps} gaps a step end right after a launch"
    if hidden_by is None:
        title = f"The GPU waits for the host in {units.share(measured.idle_share)} of the step"
        notes = [f"{gaps} ({units.share(late)})."]
    else:
        title = f"Without {hidden_by} the host is the limit: it launches one step in {units.time(measured.step_us)}"
        notes = [f"Once {hidden_by} is gone, {gaps} ({units.share(late)}); today its kernels fill that time."]
    if case.has_stacks:
        notes.append(
            "The trace was recorded with Python stacks, so the profiler itself may be the cause: a run without it can"
            " be much faster. Record once more without stacks, or compare with tokens/s measured without the profiler."
        )
    yield Cause(
        title=title,
        confidence=Confidence.LOW if case.has_stacks else Confidence.MEDIUM,
        notes=notes,
        time_us_per_step=case.measured.idle_us,
        evidence=Evidence(
            calls_per_step=_launches(case).n_unique() / steps,
            gaps_per_step=measured.gaps / steps,
            late_gap_share=late,
        ),
        change=Change(removal(case, ()).removed, launches_free=True),
        assumption=ASSUMPTION,
        fixes=(SERVER_GRAPHS, OWN_GRAPH) if case.phase in SERVED else (OWN_GRAPH,),
    )


def _waits_for_host(case: Case, steps: Replayed, joined_us: float) -> bool:
    enough = steps.gaps >= MIN_GAPS * len(case.step_indices)
    is_idle = steps.idle_us - joined_us > MIN_IDLE_SHARE * steps.step_us
    return enough and is_idle and steps.late_gaps >= MIN_LATE_SHARE * steps.gaps


def _launches(case: Case) -> pl.Series:
    """Return the calls that launched the work of the steps, one for each kernel of which it is known."""
    steady = np.isin(np.concatenate([group.step_of_row for group in case.groups]), case.step_indices)
    rows = np.concatenate([group.rows for group in case.groups])[steady]
    return case.linked.kernels["launch"].gather(rows).drop_nulls()


RULE = Rule("launch-bound", __doc__, check, needs=("GPU kernels", "launches on the host"), runs_last=True)
