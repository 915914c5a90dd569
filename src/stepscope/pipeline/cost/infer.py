"""Facts of the deployment that were not told, where the shapes of a trace determine them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.model import How, Parallel, match_shape, rank_weights
from stepscope.pipeline.cost.ops import as_gemm, call_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.model import Deployment, KVPoolLayout, ModelSpec
    from stepscope.pipeline.attribute import WorkGroup

_CACHE_OPS = {"aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::index_select"}
"""Ops whose first input is looked up in, or written to, by row: with the pool's row, that is the pool."""
_GROUPS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Sizes of tensor-parallel groups that are tried."""
LEAST_SHAPES = 2
"""So many multiplications must fit a size: one may do so by chance."""


def settle(deployment: Deployment, groups: Sequence[WorkGroup]) -> Deployment:
    """Return the deployment with the ranks and the pool's slots, where they were not told and shapes determine them.

    Each comes with a note that says so.
    """
    spec, notes = deployment.spec, list(deployment.notes)
    if spec is None:
        return deployment
    parallel, slots = deployment.parallel, deployment.pool_slots
    if parallel is None and (tp := infer_tp(spec, groups)) is not None:
        parallel = Parallel(tp)
        notes.append(f"--tp {tp} is inferred: the shapes of the recorded multiplications fit no other number of ranks")
    if slots is None and deployment.kv_pool and (slots := infer_slots(deployment.kv_pool, groups)):
        notes.append(f"the KV pool's {slots:,} slots are those of the tensor that the trace's ops index")
    weights = deployment.weights or (rank_weights(spec, parallel, deployment.formats) if parallel else ())
    return replace(deployment, parallel=parallel, weights=weights, pool_slots=slots, notes=tuple(notes))


def infer_slots(pool: KVPoolLayout, groups: Iterable[WorkGroup]) -> int | None:
    """Return the slots of the one tensor with the pool's row that ops index; None where there is none, or several."""
    indexed = {
        pool.slots_of_shape(group.input_shapes[0])
        for group in groups
        if group.op in _CACHE_OPS and group.input_shapes and group.input_shapes[0]
    }
    slots = indexed - {None}
    return slots.pop() if len(slots) == 1 else None


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
