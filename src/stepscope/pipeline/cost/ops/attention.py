"""Attention over given keys and values: queries, keys, values and result once; two products for every pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from stepscope.pipeline.cost.ops.call import Call

_NAMES = tuple(f"aten::_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn"))


def _attention(call: Call) -> Work | None:
    """`attention(q [b, h, s, d], k [b, g, t, d], v [b, g, t, e])`.

    Whether it is causal is not recorded: with as many queries as keys, half of the pairs are the least.
    """
    if not all(call.is_tensor(index, 4) for index in range(3)):
        return None
    batch, heads, queries, width = call.shapes[0]
    keys, value = call.shapes[1][2], call.shapes[2][3]
    result = batch * heads * queries * value * call.item_bytes(0)
    pairs = queries * keys if queries != keys else queries * (queries + 1) // 2
    return Work(sum(map(call.bytes, range(3))) + result, 2 * batch * heads * pairs * (width + value))


COSTS = dict.fromkeys(_NAMES, _attention)
