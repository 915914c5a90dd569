"""Rows looked up in a table: only the rows that are asked for count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from stepscope.pipeline.cost.ops.call import Call


def _embedding(call: Call) -> Work | None:
    """`embedding(table [v, h], ids)`."""
    if not (call.is_tensor(0, 2) and call.is_tensor(1)):
        return None
    return Work(call.bytes(1) + 2 * call.elements(1) * call.shapes[0][1] * call.item_bytes(0))


def _gather(call: Call) -> Work | None:
    """`gather(values, axis, index)`: one value read and written for each index."""
    if not (call.is_tensor(0) and call.is_tensor(2)):
        return None
    return Work(call.bytes(2) + 2 * call.elements(2) * call.item_bytes(0))


COSTS = {"aten::embedding": _embedding, "aten::gather": _gather}
