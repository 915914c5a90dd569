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
Change only the size of the pool (SGLang: `--max-total-tokens`). If the step's time follows it, the pool is cast.

## Fixes
Today: a backend that reads FP8 on this GPU, or a 16-bit KV cache, which halves the number of tokens that fit. In code:
tell the attention's plan the type that the pool really has, and pass the pool as it is; where the kernel cannot read
FP8, gather the referenced slots and cast only those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace

from stepscope import units
from stepscope.document import Confidence, Fix
from stepscope.model import How, match_elements, match_shape
from stepscope.pipeline.attribute.live_tokens import ONE_BLOCK_A_ROW, LiveTokens, live_tokens
from stepscope.pipeline.cost import Transfer
from stepscope.pipeline.cost.tensors import most_slots
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
from stepscope.pipeline.whatif import Change

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.model import KVPoolLayout
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.attribute.moved import Moved

MIN_BYTES = 4 << 20
"""A smaller cast takes about a µs; no pool that matters is so small."""
MIN_LIVE_RATIO = 2.0
"""A pool with fewer slots than this many times the live tokens is about what must be read anyway."""
MIN_CALLS_WITHOUT_MODEL = 4
"""Without shapes and without a model, only a cast that many layers repeat is taken for the pool's."""
MIN_SHARE_TO_ASK = 0.1
"""A cast that takes less of the step is not worth a question."""
POOL_DTYPE = "Float8_e4m3fn"
"""What servers store KV in when it needs a cast to 16 bits; a grid does not tell the source type."""
ATTENTION_DTYPES = {"BFloat16", "Half"}
"""What attention kernels that cannot read FP8 take."""
FLOAT8_WRITE = "float8_copy_kernel"
"""The kernel that writes new tokens to an FP8 pool."""

CONTROL = (
    "Restart with another pool size and nothing else changed (SGLang: --max-total-tokens 65536). If the step's time"
    " follows the pool's size, this is the cause; if it does not, it is not."
)
_LAUNCHES = (
    "the host's launches stay as recorded, profiler overhead included; from the fastest to the slowest step, and 10%"
    " for the replay's error"
)
ASSUMPTION = f"the casts are gone and nothing comes in their place; {_LAUNCHES}"
LIVE_ASSUMPTION = f"only the live tokens are cast, at the rate of today's casts; {_LAUNCHES}"


LIVE_TOKENS_UNKNOWN = Unchecked(
    "how many tokens are live, so how much of each cast is needed",
    "give --context TOKENS (tokens of a request); the batch size comes from the step's annotation",
)
_CLASSES = {"cast", "copy"}


@dataclass(frozen=True, slots=True)
class _PoolCast:
    group: WorkGroup
    slots: int
    transfer: Transfer
    from_shape: bool


class _Pool(NamedTuple):
    """The pool's row and what its shape must respect, looked up once for all casts of a phase."""

    layout: KVPoolLayout
    rows: int
    """Rows of the largest tensor of a pool's width: what has fewer was gathered from it."""
    batch_sizes: set[int]
    """Sizes that follow the batch: a tensor that begins with one is new in every step."""


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find casts of as many rows as a pool has, in every step, of which few can be live."""
    layout = case.deployment.kv_pool
    if layout is None:
        yield from _kept_by_head(case)
        return
    shapes = [shape for group in case.groups for shape in group.input_shapes or ()]
    pool = _Pool(layout, most_slots(layout, shapes), batch_sizes(case))
    pool_casts = [cast for group in case.groups if (cast := _pool_cast(case, group, pool))]
    if not pool_casts:
        yield from _other_counts(case, layout)
        return
    largest = pool_casts[0]
    live = live_tokens(case.deployment, case.step, case.groups, largest.slots, largest.group.calls_per_step)
    if live is None:
        yield LIVE_TOKENS_UNKNOWN
    elif largest.slots < MIN_LIVE_RATIO * live.tokens:
        return
    origin = Origin.of(case, [cast.group for cast in pool_casts])
    yield from origin.unchecked()
    shape = largest.group.moved.shape if largest.group.moved else None
    casts = Casts(
        groups=[cast.group for cast in pool_casts],
        tensors=[layout.describe(cast.slots) for cast in pool_casts],
        transfer=largest.transfer,
        shape=shape or (largest.slots, 1, layout.row),
    )
    floor = _floor_of_live(case, layout, largest, live)
    evidence = replace(
        cast_evidence(case, casts, origin),
        live_tokens=live.tokens if live else None,
        live_fraction=live.tokens / largest.slots if live else None,
        floor_us_per_step=floor,
    )
    types = f"{largest.transfer.source_dtype} → {largest.transfer.target_dtype}"
    yield Cause(
        title=f"The whole KV pool is cast {types} {units.count(largest.group.calls_per_step)} times a step",
        confidence=_confidence(case, largest),
        notes=[
            *_inference_notes(case, layout, largest),
            *_waste_notes(largest, live, floor),
            *slow_kernel_note(evidence),
            *origin.notes,
        ],
        time_us_per_step=covered_us_per_step(case, casts.groups),
        evidence=evidence,
        change=_live_only(case, pool_casts, live) if live else removal(case, casts.groups),
        assumption=LIVE_ASSUMPTION if live else ASSUMPTION,
        control=CONTROL,
        fix=_fixes(origin),
    )


def _live_only(case: Case, pool_casts: Sequence[_PoolCast], live: LiveTokens) -> Change:
    """Return the change by which each cast is one of the live tokens: what is read must be read in any case."""
    factor = np.ones(case.linked.kernels.height)
    for cast in pool_casts:
        factor[cast.group.rows] = min(live.tokens / cast.slots, 1.0)
    return Change.scaled(factor != 1.0, factor)


def _kept_by_head(case: Case) -> Iterator[Unchecked]:
    """Say that a large cast could be of keys or values: with a shape it is a redundant cast, without nothing tells."""
    for group in _large_casts_without_shape(case):
        calls = units.count(group.calls_per_step)
        missing = f"whether a cast that runs {calls} times a step is of the cache, which this model keeps by head"
        yield Unchecked(missing, "check --model; or record an eager run with record_shapes=True")
        return


def _large_casts_without_shape(case: Case) -> Iterator[WorkGroup]:
    for group in case.groups:
        large = group.time_us_per_step >= MIN_SHARE_TO_ASK * case.measured.step_us
        if large and group.moved and group.moved.shape is None and group.kernel_class == "cast":
            yield group


def _other_counts(case: Case, layout: KVPoolLayout) -> Iterator[Unchecked]:
    """Say that a large cast could be of this pool but for how often it runs, or for the slots that the server tells."""
    spec, told = case.deployment.spec, case.deployment.pool_rows
    for group in _large_casts_without_shape(case):
        fits = layout.slots_in_range(group.moved.elements_low, group.moved.elements_high) if group.moved else ()
        if spec is None or not fits:
            continue
        calls = units.count(group.calls_per_step)
        if _repeated_by_layers(case, group):
            if told is not None and not any(rows in told for rows in fits):
                missing = f"a cast of {fits[-1]:,} slots that runs {calls} times a step; the server tells {told[0]:,}"
                yield Unchecked(missing, "check that --server-info is of the server that was recorded")
                return
        else:
            missing = f"a cast that runs {calls} times a step, which does not fit the model's {len(spec.layers)} layers"
            yield Unchecked(missing, "check --model; or record an eager run with record_shapes=True")
            return


def _floor_of_live(case: Case, layout: KVPoolLayout, cast: _PoolCast, live: LiveTokens | None) -> float | None:
    """Return the least µs a step in which the live tokens alone could be cast."""
    if live is None:
        return None
    elements = live.tokens * layout.row
    floor = Transfer(elements, cast.transfer.source_dtype, cast.transfer.target_dtype).floor_us(case.gpu)
    return None if floor is None else floor * cast.group.calls_per_step


def _pool_cast(case: Case, group: WorkGroup, pool: _Pool) -> _PoolCast | None:
    moved = group.moved
    if moved is None or moved.target_dtype is None or not group.is_repeated or group.kernel_class not in _CLASSES:
        return None
    if moved.source_dtype is None and moved.target_dtype == case.deployment.kv_dtype:
        return None  # the pool is of the type already
    if moved.shape is None:
        slots = _slots_of_launch(case, pool.layout, group, moved)
    else:
        slots = _slots_of_shape(case, pool, moved, moved.shape)
    if slots is None:
        return None
    elements = slots * pool.layout.row
    source = moved.source_dtype or case.deployment.kv_dtype or POOL_DTYPE
    transfer = Transfer(elements, source, moved.target_dtype)
    if transfer.bytes < MIN_BYTES:
        return None
    return _PoolCast(group, slots, transfer, from_shape=moved.shape is not None)


def _slots_of_shape(case: Case, pool: _Pool, moved: Moved, shape: Sequence[int]) -> int | None:
    slots = pool.layout.slots_of_shape(shape)
    if slots is None or not moved.is_cast or shape[0] in pool.batch_sizes or slots < pool.rows:
        return None
    if match_shape(case.deployment.weights, shape, least=How.TRANSPOSED):  # kv_a_proj is as wide as the pool's row
        return None
    return slots


def _slots_of_launch(case: Case, layout: KVPoolLayout, group: WorkGroup, moved: Moved) -> int | None:
    fitting = layout.slots_in_range(moved.elements_low, moved.elements_high)
    if not fitting or group.kernel_class != "cast" or not _repeated_by_layers(case, group):
        return None
    if moved.target_dtype not in ATTENTION_DTYPES:  # attention's scores are cast to float32 for their softmax
        return None
    if match_elements(case.deployment.weights, moved.elements_low, moved.elements_high):
        return None
    if any(rows in fitting for rows in _gathered(case)):
        return None
    told = case.deployment.pool_rows
    return fitting[-1] if told is None else next((rows for rows in fitting if rows in told), None)


def _gathered(case: Case) -> Iterator[int]:
    """Yield how many rows each gather writes: a cast of as many is of what was gathered."""
    for group in case.groups:
        if ONE_BLOCK_A_ROW in group.kernel and group.grid:
            yield group.grid[0]


def _repeated_by_layers(case: Case, group: WorkGroup) -> bool:
    """Tell whether a cast without a shape runs as a layer's work does."""
    spec = case.deployment.spec
    if spec is None:
        return _writes_float8(case) and group.calls_per_step >= MIN_CALLS_WITHOUT_MODEL
    rounds, rest = divmod(group.calls_per_step, len(spec.layers))
    return rounds >= 1 and rest <= rounds * spec.mtp_layers


def _writes_float8(case: Case) -> bool:
    return any(FLOAT8_WRITE in group.kernel for group in case.groups)


def _confidence(case: Case, cast: _PoolCast) -> Confidence:
    """A launch's size alone is weak: most sizes hold some whole number of rows. Writes of FP8 beside it are more.

    That the server tells of a pool which just this size holds is as good as a shape.
    """
    if cast.from_shape or case.deployment.pool_rows is not None:
        return Confidence.HIGH
    return Confidence.MEDIUM if _writes_float8(case) else Confidence.LOW


def _inference_notes(case: Case, layout: KVPoolLayout, cast: _PoolCast) -> list[str]:
    moved, group = cast.group.moved, cast.group
    if cast.from_shape or moved is None or group.grid is None:
        return []
    elements = f"{moved.elements_low:,} to {moved.elements_high:,} elements"
    fitting = layout.slots_in_range(moved.elements_low, moved.elements_high)
    fit = f"only {fitting[0]:,} slots fit" if len(fitting) == 1 else f"{fitting[0]:,} to {fitting[-1]:,} slots fit"
    spec = case.deployment.spec
    row = f"{layout.latent} + {layout.rope} elements" + ("" if spec else ", as in every published MLA model")
    layers = f"the model's {len(spec.layers)} layers do" if spec else "layers do"
    slots, told = case.deployment.pool_slots, case.deployment.kv_dtype
    server = "" if slots is None else f"; the server tells of {slots:,}"
    known = "told" if told == cast.transfer.source_dtype else "inferred"
    read = f"{group.grid[0]:,} blocks hold {elements}; {fit} in between, if a slot has {row}"
    often = f"it runs {units.count(group.calls_per_step)} times a step, as often as {layers}"
    return [
        f"Read off the launch: {read}{server}. That {often}, makes it the pool's.",
        f"The kernel names the target type; that the source is {cast.transfer.source_dtype} is {known}.",
    ]


def _waste_notes(cast: _PoolCast, live: LiveTokens | None, floor_us: float | None) -> list[str]:
    if live is None:
        return []
    text = f"{live.tokens:,} of {cast.slots:,} slots are live ({live.source}): {units.share(live.tokens / cast.slots)}."
    if floor_us is not None:
        text += f" Casting only those takes at least {units.time(floor_us)} a step, and 0 with a kernel that reads FP8."
    return [text]


def _fixes(origin: Origin) -> Sequence[Fix]:
    return (
        Fix(
            what="Use an attention backend that reads the FP8 KV cache (SGLang on Hopper: --attention-backend flashmla"
            " --page-size 64, or --attention-backend triton)",
            kind="configuration",
            needs="a restart; triton casts queries and probabilities to FP8 too, so check the output's quality",
        ),
        Fix(
            what="Store the KV cache in 16 bits (SGLang: --kv-cache-dtype auto)",
            kind="configuration",
            needs="a restart, and half as many tokens fit in the pool",
        ),
        Fix(
            what="Tell the attention's plan() the type that the pool has (kv_data_type) instead of the query's",
            kind="code",
            where=origin.where,
            needs="a kernel that reads FP8 with 16-bit queries",
        ),
        Fix(
            what="Pass the pool as it is: remove the .to(...) of the whole buffer, or gather the referenced slots first"
            " and cast only those",
            kind="code",
            where=origin.where,
        ),
    )


RULE = Rule(
    id="kv-pool-cast",
    title="The whole KV pool is cast in every layer of every step",
    phases=("decode", "prefill", "mixed", "unknown"),
    needs=("GPU kernels", "input shapes, or the launch size of a copy kernel"),
    explanation=__doc__,
    check=check,
    classes=("cast", "copy"),
)
