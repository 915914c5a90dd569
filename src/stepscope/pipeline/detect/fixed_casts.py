"""Large casts of a tensor that is the same in every step: of a weight, or of a buffer whose shape follows no batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.dtypes import is_floating
from stepscope.model import match_elements
from stepscope.pipeline.cost import Transfer
from stepscope.pipeline.detect.batch import batch_sizes
from stepscope.pipeline.detect.casts import MIN_BYTES
from stepscope.pipeline.detect.weights import is_new_in_each_step, may_be_activation, weights_of_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.model import Weight
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.attribute.moved import Moved
    from stepscope.pipeline.detect.rule import Case


@dataclass(frozen=True, slots=True)
class FixedCast:
    """A group of such casts."""

    group: WorkGroup
    weights: Sequence[Weight]
    """Those that it may be of: of the recorded shape, or else of as many elements as the launch; none: a buffer."""
    transfer: Transfer
    """What a call moves."""

    @property
    def shape(self) -> Sequence[int] | None:
        """As recorded, or else that of the only weight that it may be of."""
        recorded = self.group.moved.shape if self.group.moved else None
        return recorded or (self.weights[0].shape if len(self.weights) == 1 else None)


def fixed_casts(case: Case) -> list[FixedCast]:
    """Return the casts of 4 MiB and more that neither follow the batch nor are the pool's, the longest first."""
    following = batch_sizes(case)
    return [cast for group in case.groups if (cast := _fixed_cast(case, group, following))]


def may_be_of_weight(group: WorkGroup) -> bool:
    """Tell whether a large cast has no shape, so that only the size of a known weight could name it."""
    moved = group.moved
    if moved is None or moved.shape is not None or group.kernel_class != "cast" or not group.is_repeated:
        return False
    transfer = _transfer(moved, ())
    return transfer is not None and transfer.bytes >= MIN_BYTES


def _fixed_cast(case: Case, group: WorkGroup, following: set[int]) -> FixedCast | None:
    moved = group.moved
    if moved is None or not group.is_repeated or (group.calls_per_step < 2 and len(group.steps) < 2):
        return None
    weights = _weights(case, moved)
    if moved.shape is None:  # without a shape only a known weight is told from an activation, if its size can be none's
        if not weights or group.kernel_class != "cast" or may_be_activation(case, moved.elements_low):
            return None
    elif not _is_fixed(case, moved, moved.shape, following, is_weights=bool(weights)):
        return None
    transfer = _transfer(moved, weights)
    return FixedCast(group, weights, transfer) if transfer and transfer.bytes >= MIN_BYTES else None


def _is_fixed(case: Case, moved: Moved, shape: Sequence[int], following: set[int], *, is_weights: bool) -> bool:
    """Tell whether what has this shape is cast between real types, and neither the pool nor an activation."""
    pool = case.deployment.kv_pool
    if not is_weights and pool and pool.slots_of_shape(shape) is not None:
        return False
    if is_new_in_each_step(tuple(shape), following, is_weights=is_weights):
        return False
    return bool(moved.is_cast) and all(map(is_floating, (moved.source_dtype or "", moved.target_dtype or "")))


def _weights(case: Case, moved: Moved) -> list[Weight]:
    if moved.shape is None:
        return match_elements(case.deployment.weights, moved.elements_low, moved.elements_high)
    return weights_of_shape(case.deployment.weights, moved.shape)


def _transfer(moved: Moved, weights: Sequence[Weight]) -> Transfer | None:
    """Return what is moved; a source type that is not known counts as the target's, so bytes are not overstated."""
    if moved.target_dtype is None:
        return None
    elements = weights[0].elements if weights else moved.elements_high
    return Transfer(elements, moved.source_dtype or moved.target_dtype, moved.target_dtype)
