"""A weight is converted, scaled or transposed anew in every step before it is multiplied.

## What it looks like
Before each GEMM a copy or cast of the weight's shape, and for a quantised weight a multiplication of that shape by its
scales; in a graph, where no shapes are, kernels that write as many elements as the weight has, right before a GEMM.
Their time does not change with the batch, the context or the step.

## Why it happens
The weights are stored in a type or layout that the GEMM does not take, and the forward pass makes the one from the
other: `(weight.to(x.dtype) * scale) @ x`, `weight.t().contiguous()`, a dequantisation kernel for want of a GEMM that
dequantises inside.

## What looks the same and is harmless
The same once, at load or at first use. Activations as large as a weight. Training, where weights change in every step.
In prefill, a dequantisation that is small beside the GEMM it serves: it is reported, but gains little.

## Control
Make the GEMM's weight once, before the first step, and keep it. The step must get shorter by the predicted time.

## Fixes
First a server's switch, or a GEMM that takes the weights as they are stored (FP8 × FP8, or Marlin and Machete for 4
bits): it reads fewer bytes, too. SGLang's diffusion linears of FP8 weights keep what they dequantised since #34305
(`SGLANG_DIFFUSION_FP8_WEIGHT_DEQUANT_CACHE=1`, the default). In code: convert, scale and transpose where the weight is
loaded; the memory of the converted weights is the price.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from stepscope import units
from stepscope.document import Confidence, Fix
from stepscope.dtypes import item_bytes
from stepscope.pipeline.detect.casts import Casts, cast_evidence, slow_kernel_note
from stepscope.pipeline.detect.evidence import MOST_GROUPS, work_evidence
from stepscope.pipeline.detect.host_ops import with_ops_gone
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.placement import Placement
from stepscope.pipeline.detect.rebuilt import Rebuilt, may_be_weights
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.detect.training import is_training
from stepscope.pipeline.whatif import Change, host_time, only_launched

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.document import Evidence
    from stepscope.pipeline.detect.rebuilt import Part

MIN_SHARE = 0.005
"""Less of what the GPU does in a step is not worth a reader's time."""
CONTROL = (
    "Make what the GEMM takes once, before the first step, and use it; the step must get shorter by the predicted time."
)
ASSUMPTION = (
    "the kernels that rebuild weights are gone, with their launches and ops, and the GEMMs read what they read today;"
    " from the fastest to the slowest step, and 10% for the replay's error"
)


UNKNOWN_WEIGHTS = Unchecked(
    "whether what is converted or copied right before GEMMs is their weight: no shape and no weight is known",
    "give --model and --tp, or record an eager run with record_shapes=True",
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find work that writes whole weights in every step."""
    placement = Placement.of(case)
    rebuilt = Rebuilt.of(case, placement)
    parts, rows = rebuilt.parts, rebuilt.rows
    least_us = MIN_SHARE * float(np.median(case.measured.busy_us))
    if not case.deployment.weights and placement.covered_us_per_step(may_be_weights(case, placement)) > least_us:
        yield UNKNOWN_WEIGHTS
    time_us = placement.covered_us_per_step(rows)
    if time_us <= least_us or not any(part.makes for part in parts) or is_training(case.linked):
        return
    origin = Origin.of(case, [part.group for part in parts])
    yield from origin.unchecked()
    evidence = _evidence(case, placement, rebuilt, origin)
    gone = Change(rows, host_gone=host_time(case.linked, only_launched(case.linked, rows)))
    kernels = units.count(placement.calls_per_step(rows))
    yield Cause(
        title=f"Weights are rebuilt before they are multiplied, by {kernels} kernels a step",
        confidence=_confidence(parts[0]),
        notes=[*_identity_notes(parts), *slow_kernel_note(evidence), *origin.notes],
        time_us_per_step=time_us,
        evidence=evidence,
        change=with_ops_gone(case.linked, gone),
        assumption=ASSUMPTION,
        control=CONTROL,
        fix=_fixes(parts, origin),
    )


def _evidence(case: Case, placement: Placement, rebuilt: Rebuilt, origin: Origin) -> Evidence:
    shown, largest, transfer = rebuilt.parts[:MOST_GROUPS], rebuilt.parts[0], rebuilt.parts[0].transfer
    if transfer is None or largest.weight is None:
        evidence = work_evidence(placement, rebuilt.rows, origin)
        return replace(evidence, calls_per_step=largest.group.calls_per_step)
    names = [part.weight.name if part.weight else None for part in shown]
    casts = Casts([part.group for part in shown], names, transfer, largest.weight.shape)
    source = largest.group.moved.source_dtype if largest.group.moved else transfer.source_dtype
    return replace(cast_evidence(case, casts, origin), source_dtype=source)


def _confidence(part: Part) -> Confidence:
    if part.weight is None:
        return Confidence.LOW
    return Confidence.HIGH if part.is_sure else Confidence.MEDIUM


def _identity_notes(parts: Sequence[Part]) -> Iterator[str]:
    makes = [part for part in parts if part.makes]
    scales_us = sum(part.group.time_us_per_step for part in parts if not part.makes)
    if scales_us:
        yield f"{units.time(scales_us)} a step of it multiply what was converted by its scales, or change it otherwise."
    if any(part.weight is None for part in makes):
        yield "That a kernel dequantises weights is read off its name, and off the GEMM that follows it."
    elif not all(part.is_sure for part in makes):
        yield "Which weights they are is read off the launches' sizes, and off the GEMMs that follow them."


def _fixes(parts: Sequence[Part], origin: Origin) -> Sequence[Fix]:
    written = [
        part.group.calls_per_step * transfer.elements * item_bytes(transfer.target_dtype)
        for part in parts
        if part.makes and (transfer := part.transfer)
    ]
    memory = f"up to {units.size(round(sum(written)))} more memory on each rank" if written else None
    return (
        Fix(
            what="Use a GEMM that takes the weights as they are stored (FP8: scaled_mm or DeepGEMM; 4 bits: Marlin or"
            " Machete), or the server's switch that keeps what was converted",
            kind="configuration",
        ),
        Fix(
            what="Convert, scale and transpose the weight once, where it is loaded, and keep the result",
            kind="code",
            where=origin.where,
            needs=memory,
        ),
    )


RULE = Rule(
    id="weight-rematerialised",
    title="A weight is converted, scaled or transposed anew in every step",
    phases=("decode", "prefill", "mixed", "unknown"),
    needs=("GPU kernels", "input shapes, or --model and --tp to know a weight by its size"),
    explanation=__doc__,
    check=check,
    classes=("cast", "copy", "quantise", "elementwise"),
)
