"""What the call of an op costs, from the shapes and types of its inputs: one file a kind of op."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.cost.ops import attention, copies, elementwise, embedding, gemm, moe, norm, reductions
from stepscope.pipeline.cost.ops.call import Call
from stepscope.pipeline.cost.ops.gemm import Gemm, as_gemm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.pipeline.cost.work import Work

__all__ = ["Call", "Gemm", "as_gemm", "work_of"]

_COSTS: Mapping[str, Callable[[Call], Work | None]] = {
    name: cost
    for kind in (attention, copies, elementwise, embedding, gemm, moe, norm, reductions)
    for name, cost in kind.COSTS.items()
}


def work_of(call: Call) -> Work | None:
    """Return the least work of a call; None for an op that is not known, or whose inputs do not fit it."""
    cost = _COSTS.get(call.op)
    return cost(call) if cost else None
