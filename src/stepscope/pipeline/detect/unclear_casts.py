"""Large casts that may be of the KV pool, and what would tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import units
from stepscope.pipeline.detect.pool_casts import ATTENTION_DTYPES, MIN_CALLS_WITHOUT_MODEL, is_repeated_by_layers
from stepscope.pipeline.detect.rule import Unchecked

if TYPE_CHECKING:
    from stepscope.model import KVPoolLayout
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.detect.rule import Case

MIN_SHARE_TO_ASK = 0.1
"""A cast that takes less of the step is not worth a question."""
_MODEL = "check --model; or record an eager run with record_shapes=True"


def unclear_cast(case: Case) -> Unchecked | None:
    """Return what must be known to tell whether the longest large cast without a shape is of the pool."""
    layout = case.deployment.kv_pool
    large = [group for group in case.groups if _is_large(case, group)]
    asked = (_kept_by_head(group) if layout is None else _other_count(case, layout, group) for group in large)
    return next(filter(None, asked), None)


def _is_large(case: Case, group: WorkGroup) -> bool:
    if group.kernel_class != "cast" or group.moved is None or group.moved.shape is not None:
        return False
    return case.measured.share(group.time_us_per_step) >= MIN_SHARE_TO_ASK


def _kept_by_head(group: WorkGroup) -> Unchecked:
    """Ask whether it could be of keys or values: with a shape it is a redundant cast, without nothing tells."""
    calls = units.count(group.calls_per_step)
    missing = f"whether a cast that runs {calls} times a step is of the cache, which this model keeps by head"
    return Unchecked(missing, _MODEL)


def _without_model(case: Case, group: WorkGroup, calls: str) -> Unchecked | None:
    """Ask about one that runs as layers might: its size alone fits a pool as it fits a weight."""
    target = group.moved.target_dtype if group.moved else None
    if (
        target not in ATTENTION_DTYPES
        or group.calls_per_step < MIN_CALLS_WITHOUT_MODEL
        or is_repeated_by_layers(case, group)
    ):
        return None
    share = units.share(case.measured.share(group.time_us_per_step))
    size = units.number(group.moved.elements_high) if group.moved else ""
    missing = (
        f"whether a cast to {target} of {size} elements that runs {calls} times a step, {share} of it, is of the pool"
    )
    return Unchecked(missing, "give --model and --tp; or record an eager run with record_shapes=True")


def _other_count(case: Case, layout: KVPoolLayout, group: WorkGroup) -> Unchecked | None:
    """Ask about one of this pool's size that runs not as often as layers do, or has not the slots that are told."""
    spec, told = case.deployment.spec, case.deployment.pool_rows
    fits = layout.slots_in_range(group.moved.elements_low, group.moved.elements_high) if group.moved else ()
    if not fits:
        return None
    calls = units.count(group.calls_per_step)
    if spec is None:
        return _without_model(case, group, calls)
    if not is_repeated_by_layers(case, group):
        missing = f"a cast that runs {calls} times a step, which does not fit the model's {len(spec.layers)} layers"
        return Unchecked(missing, _MODEL)
    if told is None or any(rows in told for rows in fits):
        return None
    missing = f"a cast of {fits[-1]:,} slots that runs {calls} times a step; the server tells {told[0]:,}"
    return Unchecked(missing, "check that --server-info is of the server that was recorded")
