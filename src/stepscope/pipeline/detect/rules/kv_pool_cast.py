"""The whole preallocated KV pool is cast to another type in every layer of every step.

## What it looks like
`aten::to` or `aten::copy_`, or a copy kernel in a graph, once per attention layer; its elements are the pool's slots
times the pool's row. Its duration is the same in every step, whatever the batch and the context. The row is known of
latent attention (MLA); a pool of a model that keeps keys and values by head is a `redundant-cast`, where its shape is
recorded.

## Why it happens
The KV cache is stored in FP8, the attention kernel takes 16-bit keys, and the backend converts what it passes: the
whole buffer of the layer instead of the slots that the running requests use. A pool is sized by the free memory, so
almost all of what is cast is never read.

## What looks the same and is harmless
A cast of the live tokens only (a gather, then a cast), the dequantisation of a shared prefix before prefill, a single
cast at start-up, a pool of about the size of what is live.

## Control
Restart with another pool size and nothing else changed (SGLang: `--max-total-tokens 65536`). If the step's time follows
the pool's size, this is the cause; if it does not, it is not.

## Fixes
- configuration: Use an attention backend that reads the FP8 KV cache (SGLang on Hopper: `--attention-backend flashmla
  --page-size 64`, or `--attention-backend triton`). Needs a restart; triton casts queries and probabilities to FP8 too,
  so check the output's quality.
- configuration: Store the KV cache in 16 bits (SGLang: `--kv-cache-dtype auto`). Needs a restart, and half as many
  tokens fit in the pool.
- code: Tell the attention's `plan()` the type that the pool has (`kv_data_type`) instead of the query's. Needs a kernel
  that reads FP8 with 16-bit queries.
- code: Pass the pool as it is: remove the `.to(...)` of the whole buffer, or gather the referenced slots first and cast
  only those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepscope import units
from stepscope.pipeline.attribute.live_tokens import live_tokens
from stepscope.pipeline.detect.casts import Casts, cast_evidence, covered_us_per_step, removal, slow_kernel_note
from stepscope.pipeline.detect.live_casts import LiveCasts
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.pool_casts import confidence, inference_notes, pool_casts
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.detect.unclear_casts import unclear_cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MIN_LIVE_RATIO = 2.0
"""A pool with fewer slots than this many times the live tokens is about what must be read anyway."""

_LAUNCHES = "the host's launches stay as recorded, profiler overhead included"
ASSUMPTION = f"the casts are gone and nothing comes in their place; {_LAUNCHES}"
LIVE_ASSUMPTION = f"only the live tokens are cast, at the rate of today's casts; {_LAUNCHES}"
LIVE_TOKENS_UNKNOWN = Unchecked(
    "how many tokens are live, so how much of each cast is needed",
    "give --context TOKENS (tokens of a request); the batch size comes from the step's annotation",
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find casts of as many rows as a pool has, in every step, of which few can be live."""
    layout = case.deployment.kv_pool
    found_casts = pool_casts(case, layout) if layout else []
    if layout is None or not found_casts:
        if (question := unclear_cast(case)) is not None:
            yield question
        return
    groups, largest = [cast.group for cast in found_casts], found_casts[0]
    live = live_tokens(case.deployment, case.step, case.groups, largest.slots, largest.group.calls_per_step)
    if live is None:
        yield LIVE_TOKENS_UNKNOWN
    elif largest.slots < MIN_LIVE_RATIO * live.tokens:
        return
    left = LiveCasts(found_casts, live) if live else None
    floor_us = left.floor_us_per_step(case, layout.row) if left else None
    origin = Origin.of(case, groups)
    yield from origin.unchecked()
    shape = largest.group.moved.shape if largest.group.moved else None
    tensors = [layout.describe(cast.slots) for cast in found_casts]
    evidence = replace(
        cast_evidence(case, Casts(groups, tensors, largest.transfer, shape or (largest.slots, 1, layout.row))),
        live_tokens=live.tokens if live else None,
        live_fraction=left.fraction if left else None,
        floor_us_per_step=floor_us,
    )
    types = f"{largest.transfer.source_dtype} → {largest.transfer.target_dtype}"
    yield Cause(
        title=f"The whole KV pool is cast {types} {units.count(largest.group.calls_per_step)} times a step",
        confidence=confidence(case, largest),
        notes=[
            *inference_notes(case, layout, largest),
            *([left.note(floor_us)] if left else []),
            *slow_kernel_note(evidence),
        ],
        time_us_per_step=covered_us_per_step(case, groups),
        evidence=evidence,
        change=left.change(case) if left else removal(case, groups),
        assumption=LIVE_ASSUMPTION if left else ASSUMPTION,
        origin=origin,
    )


RULE = Rule(
    "kv-pool-cast",
    __doc__,
    check,
    needs=("GPU kernels", "input shapes, or the launch size of a copy kernel"),
    classes=("cast", "copy"),
)
