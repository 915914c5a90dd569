"""Copies, casts and fills: every element read once and written once."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING

from stepscope.kernel_name import LOOKED_AT
from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from stepscope.pipeline.cost.ops.call import Call

_ITEM_BYTES = re.compile(r"OpaqueType<(\d{1,2})u?>")


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


def _join(call: Call) -> Work | None:
    """`cat(tensors)`: types of a list's tensors are not recorded; the kernel's name tells the bytes of an element."""
    item = _ITEM_BYTES.search(call.kernel[:LOOKED_AT])
    if 0 not in call.lists or item is None:
        return None
    return _moved(2 * sum(map(prod, call.lists[0])) * int(item[1]))


def _moved(size: int) -> Work:
    return Work(size, avoidable_bytes=size)


COSTS = {
    "aten::cat": _join,
    "aten::copy_": _copy,
    "aten::fill_": _fill,
    "aten::zero_": _fill,
    "aten::clone": _duplicate,
    "aten::contiguous": _duplicate,
}
