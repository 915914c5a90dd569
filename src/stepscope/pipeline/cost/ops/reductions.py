"""Reductions, softmax, top-k and sampling: the input read once; a result of its own size only where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from stepscope.pipeline.cost.ops.call import Call

_TO_FEWER = "all amax amin any argmax argmin kthvalue logsumexp max mean min multinomial norm prod std sum topk var"
_TO_AS_MANY = "_softmax _log_softmax cumprod cumsum"


def _to_fewer(call: Call) -> Work | None:
    """Read the input; the result is not larger, and its size is not recorded: left out of the least work."""
    return Work(call.bytes(0), call.elements(0)) if call.is_tensor(0) else None


def _to_as_many(call: Call) -> Work | None:
    return Work(2 * call.bytes(0), call.elements(0)) if call.is_tensor(0) else None


def _sort(call: Call) -> Work | None:
    """Read the values, write them and their 64-bit indices."""
    return Work(2 * call.bytes(0) + 8 * call.elements(0)) if call.is_tensor(0) else None


COSTS = {
    **{f"aten::{name}": _to_fewer for name in _TO_FEWER.split()},
    **{f"aten::{name}": _to_as_many for name in _TO_AS_MANY.split()},
    "aten::sort": _sort,
    "aten::argsort": _sort,
}
