"""Fused experts: the weights of the experts that are hit, read once, and three products for each token and expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.cost.experts import expected_experts
from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from stepscope.pipeline.cost.ops.call import Call

_FUSED = tuple(f"{library}::{kind}place_fused_experts" for library in ("sglang", "vllm") for kind in ("in", "out"))


def _fused(call: Call) -> Work | None:
    """`fused_experts(x [t, h], w13 [e, 2i, h], w2 [e, h, i], weights [t, k], ids [t, k], …)`, routed at random.

    What follows with a leading axis of as many experts is scales and zero points. INT4 weights lie two in a byte, and
    are multiplied in the type of x.
    """
    if not (call.is_tensor(0, 2) and call.is_tensor(1, 3) and call.is_tensor(2, 3) and call.is_tensor(4, 2)):
        return None
    (tokens, hidden), (experts, _, width), per_token = call.shapes[0], call.shapes[1], call.shapes[4][1]
    if not 0 < per_token <= experts or width not in {hidden, hidden // 2}:
        return None
    scales = [index for index in call.tensors if index > 4 and call.shapes[index][:1] == [experts]]
    hit = expected_experts(experts, per_token, tokens) / experts
    weights = hit * sum(map(call.bytes, (1, 2, *scales)))
    packed = hidden // width
    values = packed * (call.elements(1) + call.elements(2)) // experts
    dtype = call.dtypes[1 if packed == 1 else 0] or ""
    return Work(weights + 2 * call.bytes(0), 2 * tokens * per_token * values, dtype)


COSTS = dict.fromkeys(_FUSED, _fused)
