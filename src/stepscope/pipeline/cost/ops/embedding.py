"""Rows looked up in a table: only the rows that are asked for count."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from stepscope.pipeline.attribute.live_tokens import ONE_BLOCK_A_ROW
from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from stepscope.pipeline.cost.ops.call import Call

_INDEX_BYTES = 8
"""Of an index, which torch keeps in 64 bits."""


def _embedding(call: Call) -> Work | None:
    """`embedding(table [v, h], ids)`."""
    if not (call.is_tensor(0, 2) and call.is_tensor(1)):
        return None
    return Work(call.bytes(1) + 2 * call.elements(1) * call.shapes[0][1] * call.item_bytes(0))


def _gather(call: Call) -> Work | None:
    """`gather(values, axis, index)`: one value read and written for each index.

    The kernel of whole rows takes an index that is expanded along them, so that it reads one for each.
    """
    if not (call.is_tensor(0) and call.is_tensor(2)):
        return None
    by_row = ONE_BLOCK_A_ROW in call.kernel and call.elements(2) > 0
    index = call.bytes(2) // call.shapes[2][-1] if by_row else call.bytes(2)
    return Work(index + 2 * call.elements(2) * call.item_bytes(0))


def _select(call: Call) -> Work | None:
    """`index_select(values, axis, ids)`: the axis is not recorded, so the one along which least is read counts."""
    if not (call.is_tensor(0) and call.is_tensor(2) and call.elements(0)):
        return None
    row = call.elements(0) // max(call.shapes[0]) * call.item_bytes(0)
    return Work(call.bytes(2) + 2 * call.elements(2) * row)


def _index(call: Call) -> Work | None:
    """`values[rows]`: how many rows are read is not recorded; of the kernel that gives each a block, the grid tells."""
    if not (call.is_tensor(0) and call.grid and ONE_BLOCK_A_ROW in call.kernel and call.shapes[0]):
        return None
    rows, row = call.grid[0], prod(call.shapes[0][1:]) * call.item_bytes(0)
    return Work(rows * (2 * row + _INDEX_BYTES))


def _index_put(call: Call) -> Work | None:
    """`values[rows] = new`: only what is written is read."""
    return Work(2 * call.bytes(2)) if call.is_tensor(0) and call.is_tensor(2) else None


COSTS = {
    "aten::embedding": _embedding,
    "aten::gather": _gather,
    "aten::index_select": _select,
    "aten::index": _index,
    "aten::_index_put_impl_": _index_put,
}
