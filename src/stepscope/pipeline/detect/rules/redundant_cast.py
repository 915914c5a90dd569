"""A large tensor that does not change is cast anew in every step or layer.

## What it looks like
A cast of at least 4 MiB a call, always of one shape and type, in every step: a weight converted before each use, a
buffer kept in one type and used in another.

## Why it happens
The tensor's type does not fit its consumer, and the conversion stands in the forward pass instead of at load time.

## What looks the same and is harmless
Casts of activations: their shape follows the batch, they are new data each time. Casts around norms and softmax, which
are kept in 32 bits on purpose. Casts of indices, which are data. A first use that is cached. Casts of the KV pool,
which have a rule of their own. Training, where weights change in every step. In a graph, casts no larger than what the
step's tokens may have in activations.

Casts of a weight that stand before its GEMM are told as what they are a part of: `weight-rematerialised`.

## Control
Cast the tensor once, before the first step, and use that copy; the step must get shorter by the predicted time.

## Fixes
- configuration: Store the tensor in the type that its consumer takes, if the server has a switch for it.
- code: Cast once, where the tensor is loaded, and keep the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import units
from stepscope.document import Confidence
from stepscope.pipeline.detect.casts import Casts, cast_evidence, covered_us_per_step, removal, slow_kernel_note
from stepscope.pipeline.detect.fixed_casts import fixed_casts, may_be_of_weight
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.detect.training import is_training
from stepscope.pipeline.detect.weights import weights_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ASSUMPTION = (
    "the casts are gone and their consumers read the result of one made at load; the host's launches stay as recorded"
)
SAME_BUFFER = "That each call casts the same buffer is inferred from its shape: a trace holds no addresses."
UNKNOWN_WEIGHTS = Unchecked(
    "whether a large cast is of a weight: it has no shape, and no weight is known",
    "give --model and --tp, or record an eager run with record_shapes=True",
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find large casts of one shape that neither follow the batch nor are the pool's."""
    if is_training(case.linked):
        return
    if not case.deployment.weights and any(map(may_be_of_weight, case.groups)):
        yield UNKNOWN_WEIGHTS
    fixed = fixed_casts(case)
    if not fixed:
        return
    groups, largest = [cast.group for cast in fixed], fixed[0]
    origin = Origin.of(case, groups)
    yield from origin.unchecked()
    transfer, tensors = largest.transfer, [weights_name(cast.weights) for cast in fixed]
    evidence = cast_evidence(case, Casts(groups, tensors, transfer, largest.shape))
    is_recorded = largest.group.moved is not None and largest.group.moved.shape is not None
    yield Cause(
        title=f"{tensors[0] or 'A tensor'} is cast {transfer.source_dtype} → {transfer.target_dtype}"
        f" {units.count(largest.group.calls_per_step)} times a step, {units.size(transfer.bytes)} each",
        confidence=Confidence.HIGH if largest.weights and is_recorded else Confidence.MEDIUM,
        notes=[*([] if largest.weights else [SAME_BUFFER]), *slow_kernel_note(evidence)],
        time_us_per_step=covered_us_per_step(case, groups),
        evidence=evidence,
        change=removal(case, groups),
        assumption=ASSUMPTION,
        origin=origin,
    )


RULE = Rule(
    "redundant-cast",
    __doc__,
    check,
    needs=("GPU kernels", "input shapes, or --model and --tp to know a weight by its size"),
    is_general=True,
    classes=("cast",),
)
