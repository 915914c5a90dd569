"""A decode step runs more rows than there are requests, and the padding costs as much as real work.

## What it looks like
The step's annotation tells a small batch, and norms, multiplications or the sampler run the rows of a larger one: the
next size that a graph was captured for. In a mixture of experts the padded rows are sent to experts that no request
needs, so that more weights are read.

## Why it happens
Graphs are captured for a few sizes, and a batch runs in the next larger one. Rows that are not masked go through the
router like others; attention reads as much for them, if their lengths are left as they were.

## What looks the same and is harmless
Padding in a dense model whose step is bound by memory: its weights are read once for 3 rows as for 16. Padded rows that
are masked: their experts are not read, and the time of the experts' multiplications shows it.

## Control
Send as many requests as there are rows: if the step takes as long as today's, the padding costs what real requests do;
if it takes longer, the padding is masked. Or run the same batch without a graph.

## Fixes
- configuration: Capture graphs for the batch sizes that occur (SGLang: `--cuda-graph-bs`; vLLM:
  `cudagraph_capture_sizes` in `--compilation-config`). Needs a restart, and memory for each graph.
- code: Mask the padded rows: send them to no expert, and set their lengths to 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from stepscope import units
from stepscope.document import Confidence
from stepscope.pipeline.detect.evidence import with_origin, work_evidence
from stepscope.pipeline.detect.fewer_rows import Padding, live_only, multiplies_experts
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.placement import Placement
from stepscope.pipeline.detect.rows_run import rows_run
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.whatif import Change

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]

MIN_SHARE = 0.02
"""Less of what the GPU does in a step is about what the estimate of a kernel's start and end may be wrong by."""
MIN_SHARE_TO_ASK = 0.1
"""Experts that take less of the step are not worth a question."""

_NOT_BY_BATCH = ("kv-pool-cast", "redundant-cast", "weight-rematerialised")
"""Rules whose findings are of work that does not follow the batch."""

ASSUMPTION = (
    "only the live rows run: experts are hit at random, multiplications shrink as their rooflines do, other kernels of"
    " more than one wave of threads with the rows, and attention and short kernels take as long as today"
)
UNKNOWN_EXPERTS = Unchecked(
    "what the padded rows cost: how many experts they hit depends on the model's",
    "give --model and --tp",
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:
    """Find decode steps that run more rows than they have tokens, where that costs time."""
    live, run = case.step.tokens or case.step.batch_size, rows_run(case)
    if not live or run is None or run.rows <= live:
        return
    spec, placement = case.deployment.spec, Placement.of(case)
    padding = Padding(live, run.rows, spec.experts if spec else None)
    experts = placement.where(multiplies_experts)
    if spec is None and placement.covered_us_per_step(experts) >= MIN_SHARE_TO_ASK * case.busy_us:
        yield UNKNOWN_EXPERTS
    factor = np.where(_not_by_batch(case, found), 1.0, live_only(case, placement, padding))
    lost_ns = (placement.end - placement.start) * (1 - factor)
    if lost_ns.sum() / 1e3 < MIN_SHARE * case.busy_us * len(case.step_indices):
        return
    rows = factor != 1.0
    origin = Origin.of(case, placement.parts_of(rows))
    how = "the shapes of its multiplications" if run.from_shape else "the grids of its norms and other kernels"
    yield Cause(
        title=f"The step runs {run.rows:,} rows for {units.count(live)} {'token' if live == 1 else 'tokens'}:"
        f" {units.share(1 - padding.share)} of them are padding",
        confidence=Confidence.HIGH if run.from_shape else Confidence.MEDIUM,
        notes=[f"The annotation tells {padding.live}; {how} tell {run.rows:,}.", *padding.notes()],
        time_us_per_step=float(lost_ns.sum()) / 1e3 / len(case.step_indices),
        # the fixes are elsewhere than the work: the evidence alone says where it comes from
        evidence=with_origin(replace(work_evidence(placement, rows), live_fraction=padding.share), origin),
        change=Change.scaled(rows, factor),
        assumption=ASSUMPTION,
    )


def _not_by_batch(case: Case, found: Mapping[str, Cause]) -> Bools:
    """Return the kernels, shape [kernels], that other rules know not to follow the batch."""
    rows = np.zeros(case.linked.kernels.height, dtype=np.bool_)
    for rule in _NOT_BY_BATCH:
        change = found[rule].change if rule in found else None
        if change is not None:
            rows |= change.touched
    return rows


RULE = Rule(
    "padding",
    __doc__,
    check,
    needs=("GPU kernels", "the batch size, from annotations", "input shapes, or grids of norms"),
    phases=("decode",),
    runs_last=True,
)
