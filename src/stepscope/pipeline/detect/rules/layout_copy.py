"""Activations are copied into another layout, once or more in every layer.

## What it looks like
Strided copies that keep the type, several times as many as the model has layers, give or take two: `aten::copy_` below
`aten::contiguous`, `aten::clone`, `aten::reshape` or `aten::flatten`; in a graph PyTorch's `elementwise_kernel` around
`direct_copy_kernel`. What they move follows the batch.

## Why it happens
One kernel writes [heads, tokens, …], the next one takes [tokens, heads × …]. A transposed view costs nothing, but
`contiguous()`, or a `reshape` that no view can do, copies it.

## What looks the same and is harmless
Copies that run beside other work: taking out 93 of them changed nothing in vllm#50847. Copies for a kernel or a
collective that takes dense tensors only, and writes to the KV cache: they cannot go without a change there. A few
copies a step. Transposes inside a library's own op. Copies of a weight, which `weight-rematerialised` tells.

## Control
Take out one of the copies, by `out=` or by passing strides, and measure a step; it must get shorter by that copy's part
of the gain. Where it does not, the copies run beside other work or their consumer got slower.

## Fixes
Have the producer write the final layout: `torch.bmm(x, w, out=y.transpose(0, 1))` as vLLM's MLA does since #42561, a
GEMM that takes output strides as SGLang's on MI355X (#24405, #25463). Or have the consumer take strides.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from stepscope import units
from stepscope.document import Confidence, Fix
from stepscope.kernel_name import LOOKED_AT
from stepscope.pipeline.cost import Transfer
from stepscope.pipeline.detect.casts import Casts, cast_evidence
from stepscope.pipeline.detect.evidence import MOST_GROUPS, work_evidence
from stepscope.pipeline.detect.host_ops import with_ops_gone
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.placement import Placement
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.detect.training import is_training
from stepscope.pipeline.detect.weights import KnownWeights
from stepscope.pipeline.whatif import Change, host_time, only_launched

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.document import Evidence
    from stepscope.pipeline.attribute import WorkGroup

MIN_CALLS = 8
"""A step: one in every layer; fewer prepare the step or sample."""
MIN_SHARE = 0.005
"""Less of what the GPU does in a step is not worth a reader's time."""
_STRIDED = re.compile(r"\belementwise_kernel(?:_manual_unroll)?<.{0,80}nocast<.{0,80}direct_copy_kernel")
_INDUCTORS = re.compile(r"^triton_poi_fused_(?:clone|copy_?|transpose)_\d+$")

CONTROL = (
    "Take one of the copies out, by out= or by passing strides, and measure a step; it must get shorter by that copy's"
    " part of the gain."
)
ASSUMPTION = (
    "the copies are gone, with their launches and ops, and what writes and reads the tensors is as fast in the layout"
    " that they have; from the fastest to the slowest step, and 10% for the replay's error"
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find strided copies of activations that repeat as layers do."""
    placement, weights = Placement.of(case), KnownWeights.of(case)
    rows = placement.where(lambda group: _is_layout_copy(group, weights))
    time_us, calls = placement.covered_us_per_step(rows), placement.calls_per_step(rows)
    if time_us < MIN_SHARE * float(np.median(case.measured.busy_us)) or calls < MIN_CALLS or is_training(case.linked):
        return
    groups = placement.groups_of(rows)
    origin = Origin.of(case, groups)
    yield from origin.unchecked()
    gone = Change(rows, host_gone=host_time(case.linked, only_launched(case.linked, rows)))
    yield Cause(
        title=f"{units.count(calls)} strided copies a step change only the layout of activations",
        confidence=Confidence.HIGH if groups[0].moved else Confidence.LOW,
        notes=[*_notes(groups), *origin.notes],
        time_us_per_step=time_us,
        evidence=_evidence(case, placement, rows, origin),
        change=with_ops_gone(case.linked, gone),
        assumption=ASSUMPTION,
        control=CONTROL,
        fix=_fixes(origin),
    )


def _is_layout_copy(group: WorkGroup, weights: KnownWeights) -> bool:
    if group.kernel_class != "copy" or not group.is_repeated or group.calls_per_step < MIN_CALLS:
        return False
    head = group.kernel[:LOOKED_AT]
    if not _STRIDED.search(head) and not _INDUCTORS.match(head):
        return False
    moved = group.moved
    if moved is None or moved.shape is None:
        return weights.of_launch(group) is None
    return not moved.is_cast and weights.of_shape(moved.shape) is None


def _evidence(case: Case, placement: Placement, rows: NDArray[np.bool_], origin: Origin) -> Evidence:
    groups = placement.groups_of(rows)[:MOST_GROUPS]
    moved = groups[0].moved
    if moved is None or moved.source_dtype is None or moved.target_dtype is None:
        return replace(work_evidence(placement, rows, origin), calls_per_step=groups[0].calls_per_step)
    transfer = Transfer(moved.elements_low, moved.source_dtype, moved.target_dtype)
    return cast_evidence(case, Casts(groups, [None] * len(groups), transfer, moved.shape), origin)


def _notes(groups: Sequence[WorkGroup]) -> Iterator[str]:
    if not groups[0].moved:
        yield "What they copy was not recorded: that the copies are strided is read off the kernel's name."
    yield "Whether what reads a copy could take strides, or what writes it could lay it out so, a trace does not tell."


def _fixes(origin: Origin) -> Sequence[Fix]:
    return (
        Fix(
            what="Have the producer write the final layout (out= of a transposed view, a GEMM that takes output"
            " strides), so that the view after it needs no copy",
            kind="code",
            where=origin.where,
        ),
        Fix(
            what="Pass the view and its strides to what reads it, instead of .contiguous() or a reshape",
            kind="code",
            where=origin.where,
            needs="a consumer that takes strides",
        ),
    )


RULE = Rule(
    id="layout-copy",
    title="Activations are copied into another layout in every layer",
    phases=("decode", "prefill", "mixed", "unknown"),
    needs=("GPU kernels",),
    explanation=__doc__,
    check=check,
    classes=("copy",),
)
