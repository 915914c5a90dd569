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
Take one of the copies out, by `out=` or by passing strides, and measure a step; it must get shorter by that copy's part
of the gain. Where it does not, the copies run beside other work or their consumer got slower.

## Fixes
- code: Have the producer write the final layout (`out=` of a transposed view, as vLLM's MLA since #42561; a GEMM that
  takes output strides, as SGLang's on MI355X, #24405 and #25463), so that the view after it needs no copy.
- code: Pass the view and its strides to what reads it, instead of `.contiguous()` or a reshape. Needs a consumer that
  takes strides.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepscope import units
from stepscope.document import Confidence
from stepscope.kernel_name import LOOKED_AT
from stepscope.pipeline.cost import Transfer
from stepscope.pipeline.detect.casts import Casts, cast_evidence
from stepscope.pipeline.detect.evidence import MOST_GROUPS, work_evidence
from stepscope.pipeline.detect.host_ops import gone_with_ops
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.placement import Placement
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.detect.training import is_training
from stepscope.pipeline.detect.weights import KnownWeights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from stepscope.document import Evidence
    from stepscope.pipeline.attribute import WorkGroup

MIN_CALLS = 8
"""A step: one in every layer; fewer prepare the step or sample."""
MIN_SHARE = 0.005
"""Less of what the GPU does in a step is not worth a reader's time."""
_STRIDED = re.compile(r"\belementwise_kernel(?:_manual_unroll)?<.{0,80}nocast<.{0,80}direct_copy_kernel")
_INDUCTORS = re.compile(r"^triton_poi_fused_(?:clone|copy_?|transpose)_\d+$")

ASSUMPTION = (
    "the copies are gone, with their launches and ops, and what writes and reads the tensors is as fast in the layout"
    " that they have"
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find strided copies of activations that repeat as layers do."""
    placement, weights = Placement.of(case), KnownWeights.of(case)
    rows = placement.where(lambda group: _is_layout_copy(group, weights))
    time_us, calls = placement.covered_us_per_step(rows), placement.calls_per_step(rows)
    if time_us < MIN_SHARE * case.busy_us or calls < MIN_CALLS or is_training(case.linked):
        return
    groups = placement.parts_of(rows)
    origin = Origin.of(case, groups)
    yield from origin.unchecked()
    yield Cause(
        title=f"{units.count(calls)} strided copies a step change only the layout of activations",
        confidence=Confidence.HIGH if groups[0].moved else Confidence.LOW,
        notes=list(_notes(groups)),
        time_us_per_step=time_us,
        evidence=_evidence(case, placement, rows),
        change=gone_with_ops(case.linked, rows),
        assumption=ASSUMPTION,
        origin=origin,
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


def _evidence(case: Case, placement: Placement, rows: NDArray[np.bool_]) -> Evidence:
    groups = placement.parts_of(rows)[:MOST_GROUPS]
    moved = groups[0].moved
    if moved is None or moved.source_dtype is None or moved.target_dtype is None:
        return replace(work_evidence(placement, rows), calls_per_step=groups[0].calls_per_step)
    transfer = Transfer(moved.elements_low, moved.source_dtype, moved.target_dtype)
    return cast_evidence(case, Casts(groups, [None] * len(groups), transfer, moved.shape))


def _notes(groups: Sequence[WorkGroup]) -> Iterator[str]:
    if not groups[0].moved:
        yield "What they copy was not recorded: that the copies are strided is read off the kernel's name."
    yield "Whether what reads a copy could take strides, or what writes it could lay it out so, a trace does not tell."


RULE = Rule("layout-copy", __doc__, check, needs=("GPU kernels",), classes=("copy",))
