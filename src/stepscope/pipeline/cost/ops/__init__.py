"""What the call of an op costs, from the shapes and types of its inputs: one file a kind of op."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.cost.ops import attention, copies, elementwise, embedding, gemm, moe, norm, reductions
from stepscope.pipeline.cost.ops.call import Call
from stepscope.pipeline.cost.ops.gemm import Gemm, as_gemm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.cost.work import Work

__all__ = ["Call", "Gemm", "as_gemm", "call_of", "work_of"]

_COSTS: Mapping[str, Callable[[Call], Work | None]] = {
    name: cost
    for kind in (attention, copies, elementwise, embedding, gemm, moe, norm, reductions)
    for name, cost in kind.COSTS.items()
}


def call_of(group: WorkGroup) -> Call | None:
    """Return the call that launched a group of kernels; None where its op or the op's inputs are not known."""
    if group.op is None or group.input_shapes is None or group.input_dtypes is None:
        return None
    if len(group.input_shapes) != len(group.input_dtypes):
        return None
    return Call(group.op, group.input_shapes, group.input_dtypes, group.input_lists, group.kernel, group.grid)


def work_of(call: Call) -> Work | None:
    """Return the least work of a call; None for an op that is not known, or whose inputs do not fit it."""
    cost = _COSTS.get(call.op)
    return cost(call) if cost else None
