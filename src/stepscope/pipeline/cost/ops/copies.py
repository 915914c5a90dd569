"""Copies, casts and fills: every element read once and written once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from stepscope.pipeline.cost.ops.call import Call


def _copy(call: Call) -> Work | None:
    """`copy_(target, source)`: the source may be broadcast, and is then read once."""
    if not (call.is_tensor(0) and call.is_tensor(1)):
        return None
    return _moved(call.bytes(0) + call.bytes(1))


def _fill(call: Call) -> Work | None:
    return _moved(call.bytes(0)) if call.is_tensor(0) else None


def _duplicate(call: Call) -> Work | None:
    """`clone(source)` and its kind: the result is as large as the source."""
    return _moved(2 * call.bytes(0)) if call.is_tensor(0) else None


def _moved(size: int) -> Work:
    return Work(size, avoidable_bytes=size)


COSTS = {
    "aten::copy_": _copy,
    "aten::fill_": _fill,
    "aten::zero_": _fill,
    "aten::clone": _duplicate,
    "aten::contiguous": _duplicate,
}
