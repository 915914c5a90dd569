"""Buffers are filled with a constant in every layer of every step.

## What it looks like
Small fills as often as the model has layers, or two or three times so: `aten::fill_` and `aten::zero_` below
`torch.zeros`, `ones` or `full`; PyTorch's `FillFunctor` kernels, which a captured graph repeats in every replay. 1 to
4 µs each.

## Why it happens
An output, a workspace or a counter is allocated with `zeros` in the forward pass, although the kernel that follows
writes every element, or leaves its counters at zero itself (sglang#33063); a scale of 1 is made anew for each layer.

## What looks the same and is harmless
Zeros that are needed: kernels that add to their output, padding that must not hold NaN (vllm#51674; in sglang#38851
`empty` gave NaN). Those that a kernel for adding follows are left out here. What a library clears inside its own op,
such as the counters of a split GEMM. A few fills a step.

## Control
Fill with NaN instead of 0 (integers: a large number) and run the tests. If the outputs change, the fill is needed and
this finding is void; if not, keep the buffer from step to step and measure a step.

## Fixes
- code: Allocate the buffer once, filled, and use it in every step (FlashInfer's counters: SGLang since #33063). Needs
  kernels that leave, or write anew, what must be 0 (padding: vllm#56529).
- code: Leave the fill out where the kernel that follows writes every element (vllm#37539 for AITER's MLA decode). Needs
  the control passed at every batch size and with padding: memory that nothing writes may hold NaN.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import msgspec

from stepscope import units
from stepscope.document import Confidence
from stepscope.dtypes import item_bytes
from stepscope.pipeline.detect.evidence import work_evidence
from stepscope.pipeline.detect.fills import before_sums, is_fill, is_memset
from stepscope.pipeline.detect.host_ops import gone_with_ops
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.placement import Placement
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.detect.training import is_training

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.document import Evidence
    from stepscope.pipeline.attribute import WorkGroup

MIN_CALLS = 8
"""A step: one in every layer; fewer prepare the step or sample."""
MIN_SHARE = 0.005
"""Less of what the GPU does in a step is not worth a reader's time."""

ASSUMPTION = "no fill is needed, and all are gone with their launches and ops, which is the most that can be gained"
NOT_NEEDED = (
    "Whether what reads a buffer needs its zeros, a trace does not tell: the control does. Fills right before kernels"
    " that add to their output are not counted."
)
WHOSE_MEMSETS = Unchecked(
    "who clears memory: its memsets have no op, and a library's own are none of the model's",
    "record an eager run, or the capture of the graph, and pass it as --capture-trace",
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find fills that repeat as layers do, but for those that kernels which add up need."""
    placement = Placement.of(case)
    least_us = MIN_SHARE * case.busy_us
    if placement.covered_us_per_step(placement.where(_is_nobodys_memset)) > least_us:
        yield WHOSE_MEMSETS
    rows = placement.where(_repeats_as_layers) & ~before_sums(case.linked)
    time_us, calls = placement.covered_us_per_step(rows), placement.calls_per_step(rows)
    if time_us < least_us or calls < MIN_CALLS or is_training(case.linked):
        return
    groups = placement.parts_of(rows)
    origin = Origin.of(case, groups)
    yield from origin.unchecked()
    yield Cause(
        title=f"{units.count(calls)} fills a step set buffers to a constant, {units.time(groups[0].us_per_call)} each",
        confidence=Confidence.LOW if groups[0].op is None else Confidence.MEDIUM,
        notes=[NOT_NEEDED],
        time_us_per_step=time_us,
        evidence=_evidence(groups[0], work_evidence(placement, rows)),
        change=gone_with_ops(case.linked, rows),
        assumption=ASSUMPTION,
        origin=origin,
    )


def _repeats_as_layers(group: WorkGroup) -> bool:
    return is_fill(group) and group.is_repeated and group.calls_per_step >= MIN_CALLS


def _is_nobodys_memset(group: WorkGroup) -> bool:
    return is_memset(group) and group.op is None and group.calls_per_step >= MIN_CALLS


def _evidence(largest: WorkGroup, evidence: Evidence) -> Evidence:
    shape = next(iter(largest.input_shapes or ()), None)
    dtype = next(iter(largest.input_dtypes or ()), None)
    size = None if shape is None or dtype is None else prod(shape) * item_bytes(dtype)
    return msgspec.structs.replace(
        evidence,
        calls_per_step=largest.calls_per_step,
        input_shape=shape,
        target_dtype=dtype,
        bytes_per_call=size,
        bytes_per_step=None if size is None else round(size * largest.calls_per_step),
    )


RULE = Rule("fill-in-step", __doc__, check, needs=("GPU kernels",), classes=("fill", "memset"))
