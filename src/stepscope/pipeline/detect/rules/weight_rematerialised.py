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
Make what the GEMM takes once, before the first step, and use it; the step must get shorter by the predicted time.

## Fixes
- configuration: Use a GEMM that takes the weights as they are stored, which reads fewer bytes, too (FP8: `scaled_mm` or
  DeepGEMM; 4 bits: Marlin or Machete), or the server's switch that keeps what was converted (SGLang's diffusion models
  since #34305: `SGLANG_DIFFUSION_FP8_WEIGHT_DEQUANT_CACHE=1`, the default).
- code: Convert, scale and transpose the weight once, where it is loaded, and keep the result. Needs memory for it on
  each rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepscope import units
from stepscope.pipeline.detect.casts import Casts, cast_evidence, slow_kernel_note
from stepscope.pipeline.detect.evidence import MOST_GROUPS, work_evidence
from stepscope.pipeline.detect.explanation import fixes_of
from stepscope.pipeline.detect.host_ops import gone_with_ops
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.placement import Placement
from stepscope.pipeline.detect.rebuilt import Rebuilt, may_be_weights
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.detect.training import is_training

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.document import Evidence

NATIVE, ONCE = fixes_of(__doc__)
MIN_SHARE = 0.005
"""Less of what the GPU does in a step is not worth a reader's time."""

ASSUMPTION = (
    "the kernels that rebuild weights are gone, with their launches and ops, and the GEMMs read what they read today"
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
    least_us = MIN_SHARE * case.busy_us
    if not case.deployment.weights and placement.covered_us_per_step(may_be_weights(case, placement)) > least_us:
        yield UNKNOWN_WEIGHTS
    time_us = placement.covered_us_per_step(rows)
    if time_us <= least_us or not any(part.makes for part in parts) or is_training(case.linked):
        return
    origin = Origin.of(case, [part.group for part in parts])
    yield from origin.unchecked()
    evidence = _evidence(case, placement, rebuilt)
    kernels, written = units.count(placement.calls_per_step(rows)), rebuilt.written_bytes_per_step
    memory = f"up to {units.size(written)} more memory on each rank" if written else None
    yield Cause(
        title=f"Weights are rebuilt before they are multiplied, by {kernels} kernels a step",
        confidence=rebuilt.confidence,
        notes=[*rebuilt.notes(), *slow_kernel_note(evidence)],
        time_us_per_step=time_us,
        evidence=evidence,
        change=gone_with_ops(case.linked, rows),
        assumption=ASSUMPTION,
        origin=origin,
        fixes=[NATIVE, replace(ONCE, needs=memory) if memory else ONCE],
    )


def _evidence(case: Case, placement: Placement, rebuilt: Rebuilt) -> Evidence:
    shown, largest, transfer = rebuilt.parts[:MOST_GROUPS], rebuilt.parts[0], rebuilt.parts[0].transfer
    if transfer is None or largest.weight is None:
        return replace(work_evidence(placement, rebuilt.rows), calls_per_step=largest.group.calls_per_step)
    names = [part.weight.name if part.weight else None for part in shown]
    casts = Casts([part.group for part in shown], names, transfer, largest.weight.shape)
    source = largest.group.moved.source_dtype if largest.group.moved else transfer.source_dtype
    return replace(cast_evidence(case, casts), source_dtype=source)


RULE = Rule(
    "weight-rematerialised",
    __doc__,
    check,
    needs=("GPU kernels", "input shapes, or --model and --tp to know a weight by its size"),
    classes=("cast", "copy", "quantise", "elementwise"),
)
