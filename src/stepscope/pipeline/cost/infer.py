"""Facts of the deployment that were not told, where the shapes of a trace determine them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.model import How, Parallel, match_shape, rank_weights
from stepscope.pipeline.cost.ops import as_gemm, call_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.model import ModelSpec
    from stepscope.pipeline.attribute import WorkGroup

_GROUPS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Sizes of tensor-parallel groups that are tried."""
LEAST_SHAPES = 2
"""So many multiplications must fit a size: one may do so by chance."""


def infer_tp(spec: ModelSpec, groups: Iterable[WorkGroup]) -> int | None:
    """Return the tensor-parallel size whose weights most of the recorded multiplications fit.

    Only weights that are split count: what every rank holds whole tells nothing. None where no size stands out.
    """
    shapes = {gemm.weight_shape for group in groups if (call := call_of(group)) and (gemm := as_gemm(call))}
    fitting = {size: _fitting(spec, size, shapes) for size in _GROUPS}
    best = max(fitting.values())
    sizes = [size for size, count in fitting.items() if count == best]
    return sizes[0] if len(sizes) == 1 and best >= LEAST_SHAPES else None


def _fitting(spec: ModelSpec, tp: int, shapes: Iterable[tuple[int, ...]]) -> int:
    """Count the shapes that are exactly a weight of a rank, and no weight of a group of another size as well."""
    try:
        weights = rank_weights(spec, Parallel(tp))
    except UsageError:
        return 0
    other = {weight.shape for weight in rank_weights(spec, Parallel(1))} if tp > 1 else _halved(spec)
    split = [weight for weight in weights if weight.shape not in other]
    return sum(bool(match_shape(split, shape, least=How.EXACT)) for shape in shapes)


def _halved(spec: ModelSpec) -> set[tuple[int, ...]]:
    """Return the shapes of a group of two, to which the weights of a single rank are compared."""
    try:
        return {weight.shape for weight in rank_weights(spec, Parallel(2))}
    except UsageError:
        return set()
