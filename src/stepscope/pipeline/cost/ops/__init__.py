"""What the call of an op costs, from the shapes and types of its inputs: one file a kind of op."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.cost.ops import (
    attention,
    collective,
    copies,
    elementwise,
    embedding,
    gemm,
    grouped_gemm,
    inductor,
    kv_append,
    moe,
    norm,
    quantise,
    quantised_gemm,
    reductions,
    rope,
    routing,
    sampling,
)
from stepscope.pipeline.cost.ops.call import Call
from stepscope.pipeline.cost.ops.gemm import Gemm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.cost.work import Work

__all__ = ["Call", "Gemm", "as_gemm", "call_of", "in_16_bits", "work_of"]

_GEMMS = {**gemm.READERS, **quantised_gemm.READERS}
_KINDS = (
    attention,
    copies,
    elementwise,
    embedding,
    grouped_gemm,
    kv_append,
    moe,
    norm,
    quantise,
    reductions,
    rope,
    routing,
    sampling,
)
_COSTS: Mapping[str, Callable[[Call], Work | None]] = {
    name: cost for kind in _KINDS for name, cost in kind.COSTS.items()
}
_IN_16_BITS: Mapping[str, Callable[[Call], Work | None]] = {**grouped_gemm.IN_16_BITS, **moe.IN_16_BITS}


def call_of(group: WorkGroup) -> Call | None:
    """Return the call that launched a group of kernels; None where its op or the op's inputs are not known."""
    if group.op is None or group.input_shapes is None or group.input_dtypes is None:
        return None
    if len(group.input_shapes) != len(group.input_dtypes):
        return None
    return Call(group.op, group.input_shapes, group.input_dtypes, group.input_lists, group.kernel, group.grid)


def as_gemm(call: Call) -> Gemm | None:
    """Return the multiplication that an op computes; None where it is none, or its shapes do not fit together."""
    read = _GEMMS.get(call.op)
    return read(call) if read else None


def work_of(call: Call, ranks: int | None = None) -> Work | None:
    """Return the least work of a call; None for an op that is not known, or whose inputs do not fit it.

    Args:
        call: the call.
        ranks: of the group that a collective spans; None: not known, and neither are collectives' works.
    """
    if call.op in _GEMMS:
        multiplication = as_gemm(call)
        return multiplication.work if multiplication else None
    if call.op in collective.COSTS:
        return collective.COSTS[call.op](call, ranks) if ranks is not None else None
    cost = _COSTS.get(call.op) or inductor.cost_of(call.op)
    return cost(call) if cost else None


def in_16_bits(call: Call) -> Work | None:
    """Return what a multiplication by weights of fewer bits would cost at most in 16 bits; None for any other call."""
    if call.op in _GEMMS:
        gemm = as_gemm(call)
        return gemm.in_16_bits if gemm and gemm.bytes < gemm.in_16_bits.bytes else None
    cost = _IN_16_BITS.get(call.op)
    return cost(call) if cost else None
