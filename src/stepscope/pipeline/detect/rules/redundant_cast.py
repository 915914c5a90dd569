"""A large tensor that does not change is cast anew in every step or layer.

## What it looks like
A cast of at least 4 MiB a call, always of one shape and type, in every step: a weight converted before each use, a
buffer kept in one type and used in another.

## Why it happens
The tensor's type does not fit its consumer, and the conversion stands in the forward pass instead of at load time.

## What looks the same and is harmless
Casts of activations: their shape follows the batch, they are new data each time. Casts around norms and softmax, which
are kept in 32 bits on purpose. Casts of indices, which are data. A first use that is cached. Casts of the KV pool,
which have a rule of their own.

Casts of a weight that stand before its GEMM are told as what they are a part of: `weight-rematerialised`.

## Control
Cast the tensor once, at load, and keep both copies. If the step does not get shorter by the cast's share, something
else hides it.

## Fixes
Cast once, at load, and store the result; or store the tensor in the type that its consumer takes. In code: move the
`.to(...)` from the forward pass to where the weight is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import units
from stepscope.document import Confidence, Fix
from stepscope.dtypes import is_floating
from stepscope.model import match_elements
from stepscope.pipeline.cost import Transfer
from stepscope.pipeline.detect.batch import batch_sizes
from stepscope.pipeline.detect.casts import (
    Casts,
    cast_evidence,
    covered_us_per_step,
    removal,
    slow_kernel_note,
)
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.detect.weights import is_new_in_each_step, weights_name, weights_of_shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.model import Weight
    from stepscope.pipeline.attribute import WorkGroup

MIN_BYTES = 4 << 20
"""Smaller casts take about a µs each: not worth a reader's time."""

CONTROL = (
    "Cast the tensor once, before the first step, and use that copy; the step must get shorter by the predicted time."
)
ASSUMPTION = (
    "the casts are gone and their consumers read the result of one made at load; the host's launches stay as recorded;"
    " from the fastest to the slowest step, and 10% for the replay's error"
)


UNKNOWN_WEIGHTS = Unchecked(
    "whether a large cast is of a weight: it has no shape, and no weight is known",
    "give --model and --tp, or record an eager run with record_shapes=True",
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find large casts of one shape that neither follow the batch nor are the pool's."""
    following = batch_sizes(case)
    groups = [group for group in case.groups if _is_redundant(case, group, following)]
    if not case.deployment.weights and any(_may_be_weight(group) for group in case.groups):
        yield UNKNOWN_WEIGHTS
    if not groups:
        return
    largest, weight = groups[0], _weight(case, groups[0])
    transfer = _transfer(largest, weight)
    if transfer is None:
        return
    origin = Origin.of(case, groups)
    yield from origin.unchecked()
    shape = largest.moved.shape if largest.moved else None
    candidates = [_candidates(case, group) for group in groups]
    known_shape = candidates[0][0].shape if len(candidates[0]) == 1 else None
    casts = Casts(groups, [weights_name(weights) for weights in candidates], transfer, shape or known_shape)
    evidence = cast_evidence(case, casts, origin)
    yield Cause(
        title=f"{casts.tensors[0] or 'A tensor'} is cast {transfer.source_dtype} → {transfer.target_dtype}"
        f" {units.count(largest.calls_per_step)} times a step, {units.size(transfer.bytes)} each",
        confidence=Confidence.HIGH if weight and shape else Confidence.MEDIUM,
        notes=[*_identity_note(weight), *slow_kernel_note(evidence), *origin.notes],
        time_us_per_step=covered_us_per_step(case, casts.groups),
        evidence=evidence,
        change=removal(case, casts.groups),
        assumption=ASSUMPTION,
        control=CONTROL,
        fix=(
            Fix(
                what="Store the tensor in the type that its consumer takes, if the server has a switch for it",
                kind="configuration",
            ),
            Fix(what="Cast once, where the tensor is loaded, and keep the result", kind="code", where=origin.where),
        ),
    )


def _is_redundant(case: Case, group: WorkGroup, following: set[int]) -> bool:
    moved = group.moved
    if moved is None or not group.is_repeated or (group.calls_per_step < 2 and len(group.steps) < 2):
        return False
    if moved.shape is None:  # without a shape only a known weight is told from an activation
        weight = _weight(case, group)
        transfer = _transfer(group, weight)
        is_cast = weight is not None and group.kernel_class == "cast"
    else:
        weight = _weight(case, group)
        pool = case.deployment.kv_pool
        if weight is None and pool and pool.slots_of_shape(moved.shape) is not None:
            return False
        if is_new_in_each_step(moved.shape, following, is_weights=weight is not None):
            return False
        transfer = _transfer(group, None)
        is_cast = bool(moved.is_cast) and all(map(is_floating, (moved.source_dtype or "", moved.target_dtype or "")))
    return is_cast and transfer is not None and transfer.bytes >= MIN_BYTES


def _may_be_weight(group: WorkGroup) -> bool:
    """Tell whether a large cast has no shape, so that only the size of a known weight could name it."""
    moved, transfer = group.moved, _transfer(group, None)
    if moved is None or moved.shape is not None or transfer is None or group.kernel_class != "cast":
        return False
    return group.is_repeated and transfer.bytes >= MIN_BYTES


def _transfer(group: WorkGroup, weight: Weight | None) -> Transfer | None:
    """Return what is moved; a source type that is not known counts as the target's, so bytes are not overstated."""
    moved = group.moved
    if moved is None or moved.target_dtype is None:
        return None
    elements = weight.elements if weight else moved.elements_high
    return Transfer(elements, moved.source_dtype or moved.target_dtype, moved.target_dtype)


def _weight(case: Case, group: WorkGroup) -> Weight | None:
    return next(iter(_candidates(case, group)), None)


def _candidates(case: Case, group: WorkGroup) -> list[Weight]:
    """Return the weights of the recorded shape, or else all that have as many elements as the launch."""
    moved = group.moved
    if moved is None:
        return []
    if moved.shape is None:
        return match_elements(case.deployment.weights, moved.elements_low, moved.elements_high)
    return weights_of_shape(case.deployment.weights, moved.shape)


def _identity_note(weight: Weight | None) -> list[str]:
    if weight is not None:
        return []
    return ["That each call casts the same buffer is inferred from its shape: a trace holds no addresses."]


RULE = Rule(
    id="redundant-cast",
    title="A large tensor that does not change is cast anew in every step",
    phases=("decode", "prefill", "mixed", "unknown"),
    needs=("GPU kernels", "input shapes, or --model and --tp to know a weight by its size"),
    explanation=__doc__,
    check=check,
    is_general=True,
    classes=("cast",),
)
