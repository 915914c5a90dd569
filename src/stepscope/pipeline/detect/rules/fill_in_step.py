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
Fill with NaN (integers: a large number) where it fills with 0, and run the tests: where the outputs change, the fill is
needed and there is nothing to gain. Where they do not, keep the buffer from step to step and measure a step.

## Fixes
Allocate the buffer once, filled, and pass it to the kernel that leaves it as it was (FlashInfer's counters: SGLang
since #33063). Where the control shows that all of it is overwritten, at every batch size and with padding, allocate
without filling (vllm#37539 for AITER's MLA decode). Or have the kernel that follows write its padding itself
(vllm#56529). `torch.empty` on trust is how NaN gets in.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from stepscope import units
from stepscope.document import Confidence, Fix
from stepscope.dtypes import item_bytes
from stepscope.kernel_name import LOOKED_AT
from stepscope.pipeline.detect.evidence import work_evidence
from stepscope.pipeline.detect.host_ops import with_ops_gone
from stepscope.pipeline.detect.neighbours import next_on_stream
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.placement import Placement
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.detect.training import is_training
from stepscope.pipeline.link import NONE
from stepscope.pipeline.whatif import Change, host_time, only_launched

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from stepscope.document import Evidence
    from stepscope.pipeline.attribute import WorkGroup

    Bools = NDArray[np.bool_]

MIN_CALLS = 8
"""A step: one in every layer; fewer prepare the step or sample."""
MIN_SHARE = 0.005
"""Less of what the GPU does in a step is not worth a reader's time."""
FILLS = {"aten::fill_", "aten::zero_", "aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::full"}
"""Ops whose memset is a fill; any other op clears what is its own."""
_ROCM_MEMSET = "fillBuffer"
_ADDS_UP = re.compile(r"scatter|index_add|atomic|histogram|bincount|moe_align|split_?k|stream_?k", re.IGNORECASE)
"""Kernels that add to what is there, or count in it; cuBLAS's own are in no need of it (`nvjet…splitK`)."""
_OVERWRITES = "nvjet"

CONTROL = (
    "Fill with NaN instead of 0 (integers: a large number) and run the tests. If the outputs change, the fill is needed"
    " and this finding is void; if not, keep the buffer from step to step and measure a step."
)
ASSUMPTION = (
    "no fill is needed, and all are gone with their launches and ops, which is the most that can be gained; from the"
    " fastest to the slowest step, and 10% for the replay's error"
)
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
    least_us = MIN_SHARE * float(np.median(case.measured.busy_us))
    if placement.covered_us_per_step(placement.where(_is_nobodys_memset)) > least_us:
        yield WHOSE_MEMSETS
    rows = placement.where(_is_fill) & ~_before_sums(case)
    placement = replace(placement, groups=[group.only(rows) for group in case.groups])
    time_us, calls = placement.covered_us_per_step(rows), placement.calls_per_step(rows)
    if time_us < least_us or calls < MIN_CALLS or is_training(case.linked):
        return
    groups = placement.groups_of(rows)
    origin = Origin.of(case, groups)
    yield from origin.unchecked()
    gone = Change(rows, host_gone=host_time(case.linked, only_launched(case.linked, rows)))
    yield Cause(
        title=f"{units.count(calls)} fills a step set buffers to a constant, {units.time(groups[0].us_per_call)} each",
        confidence=Confidence.LOW if groups[0].op is None else Confidence.MEDIUM,
        notes=[NOT_NEEDED, *origin.notes],
        time_us_per_step=time_us,
        evidence=_evidence(groups[0], work_evidence(placement, rows, origin)),
        change=with_ops_gone(case.linked, gone),
        assumption=ASSUMPTION,
        control=CONTROL,
        fix=_fixes(origin),
    )


def _is_fill(group: WorkGroup) -> bool:
    fills = group.op in FILLS if _is_memset(group) else group.kernel_class == "fill"
    return fills and group.is_repeated and group.calls_per_step >= MIN_CALLS


def _is_memset(group: WorkGroup) -> bool:
    return group.kernel_class == "memset" or _ROCM_MEMSET in group.kernel


def _is_nobodys_memset(group: WorkGroup) -> bool:
    return _is_memset(group) and group.op is None and group.calls_per_step >= MIN_CALLS


def _before_sums(case: Case) -> Bools:
    """Tell which kernels one follows that adds up, on the same stream; shape [kernels]."""
    names = case.linked.kernels["name"]
    adding = [name for name in names.unique().cast(pl.String) if _adds_up(name[:LOOKED_AT])]
    adds, follows = names.cast(pl.String).is_in(adding).to_numpy(), next_on_stream(case.linked)
    before: Bools = (follows != NONE) & adds[follows]
    return before


def _adds_up(kernel: str) -> bool:
    return _ADDS_UP.search(kernel) is not None and not kernel.startswith(_OVERWRITES)


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


def _fixes(origin: Origin) -> tuple[Fix, ...]:
    return (
        Fix(
            what="Allocate the buffer once, filled, and use it in every step",
            kind="code",
            where=origin.where,
            needs="kernels that leave, or write anew, what must be 0",
        ),
        Fix(
            what="Leave the fill out where the kernel that follows writes every element",
            kind="code",
            where=origin.where,
            needs="the control passed at every batch size and with padding: memory that nothing writes may hold NaN",
        ),
    )


RULE = Rule(
    id="fill-in-step",
    title="Buffers are filled with a constant in every layer",
    phases=("decode", "prefill", "mixed", "unknown"),
    needs=("GPU kernels",),
    explanation=__doc__,
    check=check,
    classes=("fill", "memset"),
)
