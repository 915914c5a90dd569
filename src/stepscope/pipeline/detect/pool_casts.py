"""Which casts of a phase are of the whole KV pool: by the shape that was recorded, or else by the launch's size."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope import units
from stepscope.document import Confidence
from stepscope.kernel_name import LOOKED_AT
from stepscope.model import How, match_elements, match_shape
from stepscope.pipeline.attribute.live_tokens import ONE_BLOCK_A_ROW
from stepscope.pipeline.cost import Transfer
from stepscope.pipeline.cost.tensors import most_slots
from stepscope.pipeline.detect.batch import batch_sizes
from stepscope.pipeline.detect.casts import MIN_BYTES
from stepscope.pipeline.detect.neighbours import next_on_stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.model import KVPoolLayout
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.attribute.moved import Moved
    from stepscope.pipeline.detect.rule import Case

MIN_CALLS_WITHOUT_MODEL = 4
"""Without shapes and without a model, only a cast that many layers repeat is taken for the pool's."""
POOL_DTYPE = "Float8_e4m3fn"
"""What servers store KV in when it needs a cast to 16 bits; a grid does not tell the source type."""
ATTENTION_DTYPES = {"BFloat16", "Half"}
"""What attention kernels that cannot read FP8 take."""
FLOAT8_WRITE = re.compile(r"float8_copy_kernel|Fp8KVCacheDataType\)[12]")
"""Kernels that write new tokens to an FP8 pool: torch's, and vLLM's with one of its two FP8 types."""
MOST_QUERIES_A_TOKEN = 128 * 576
"""Without a model: elements of a token's absorbed queries, which attention reads too, in the largest MLA models."""
BEFORE_ATTENTION = 0.9
"""So many of the casts must stand right before attention: a weight's would stand before a GEMM."""
_CLASSES = {"cast", "copy"}


@dataclass(frozen=True, slots=True)
class PoolCast:
    """A group of casts, each of a whole pool."""

    group: WorkGroup
    slots: int
    transfer: Transfer
    """What a call moves."""
    from_shape: bool
    """Whether its shape was recorded; else the size of its launch tells it."""


class _Pool(NamedTuple):
    """The pool's row and what its shape must respect, looked up once for all casts of a phase."""

    layout: KVPoolLayout
    rows: int
    """Rows of the largest tensor of a pool's width: what has fewer was gathered from it."""
    batch_sizes: set[int]
    """Sizes that follow the batch: a tensor that begins with one is new in every step."""


def pool_casts(case: Case, layout: KVPoolLayout) -> list[PoolCast]:
    """Return the casts of as many rows as a pool has, the longest first."""
    shapes = [shape for group in case.groups for shape in group.input_shapes or ()]
    pool = _Pool(layout, most_slots(layout, shapes), batch_sizes(case))
    return [cast for group in case.groups if (cast := _pool_cast(case, group, pool))]


def is_repeated_by_layers(case: Case, group: WorkGroup) -> bool:
    """Tell whether a cast without a shape runs as a layer's work does."""
    spec = case.deployment.spec
    if spec is None:
        often = group.calls_per_step >= MIN_CALLS_WITHOUT_MODEL
        return often and (_writes_float8(case) or _is_read_by_attention(case, group))
    rounds, rest = divmod(group.calls_per_step, len(spec.layers))
    return rounds >= 1 and rest <= rounds * spec.mtp_layers


def confidence(case: Case, cast: PoolCast) -> Confidence:
    """Say how sure it is that a cast is of the pool.

    A launch's size alone is weak: most sizes hold some whole number of rows. Writes of FP8 beside it are more. That the
    server tells of a pool which just this size holds is as good as a shape.
    """
    if cast.from_shape or case.deployment.pool_rows is not None:
        return Confidence.HIGH
    return Confidence.MEDIUM if _writes_float8(case) else Confidence.LOW


def inference_notes(case: Case, layout: KVPoolLayout, cast: PoolCast) -> list[str]:
    """Say how a launch's size tells the pool."""
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
    if spec is None and not _writes_float8(case):
        often += ", right before attention"
    return [
        f"Read off the launch: {read}{server}. That {often}, makes it the pool's.",
        f"The kernel names the target type; that the source is {cast.transfer.source_dtype} is {known}.",
    ]


def _pool_cast(case: Case, group: WorkGroup, pool: _Pool) -> PoolCast | None:
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
    return PoolCast(group, slots, transfer, from_shape=moved.shape is not None)


def _slots_of_shape(case: Case, pool: _Pool, moved: Moved, shape: Sequence[int]) -> int | None:
    slots = pool.layout.slots_of_shape(shape)
    if slots is None or not moved.is_cast or shape[0] in pool.batch_sizes or slots < pool.rows:
        return None
    if match_shape(case.deployment.weights, shape, least=How.TRANSPOSED):  # kv_a_proj is as wide as the pool's row
        return None
    return slots


def _slots_of_launch(case: Case, layout: KVPoolLayout, group: WorkGroup, moved: Moved) -> int | None:
    fitting = layout.slots_in_range(moved.elements_low, moved.elements_high)
    if not fitting or group.kernel_class != "cast" or not is_repeated_by_layers(case, group):
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


def _writes_float8(case: Case) -> bool:
    return any(FLOAT8_WRITE.search(group.kernel[:LOOKED_AT]) for group in case.groups)


def _is_read_by_attention(case: Case, group: WorkGroup) -> bool:
    """Tell whether attention follows right after it on more than its queries can be, and no gather stands before it."""
    tokens = max(case.step.tokens or 0, case.step.batch_size or 0)
    if group.moved is None or not tokens or group.moved.elements_low <= MOST_QUERIES_A_TOKEN * tokens:
        return False
    follows = next_on_stream(case.linked)
    attention, gathers = (_rows_of(case, kernel_class) for kernel_class in ("attention", "gather"))
    before = np.isin(follows[group.rows], attention)
    return bool(before.mean() >= BEFORE_ATTENTION and not np.isin(group.rows, follows[gathers]).any())


def _rows_of(case: Case, kernel_class: str) -> NDArray[np.int64]:
    rows = [group.rows for group in case.groups if group.kernel_class == kernel_class]
    return np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
