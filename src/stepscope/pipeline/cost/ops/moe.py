"""Fused experts: the weights of the experts that are hit, read once, and three products for each token and expert."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope.pipeline.cost.experts import expected_experts
from stepscope.pipeline.cost.ops.gemm import HALF_BYTES
from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from stepscope.pipeline.cost.ops.call import Call

_FUSED = tuple(f"{library}::{kind}place_fused_experts" for library in ("sglang", "vllm") for kind in ("in", "out"))


class _Experts(NamedTuple):
    """Tokens, each sent through both products of some experts."""

    tokens: int
    hidden: int
    experts: int
    per_token: int
    values: int
    """Weights of one expert."""
    packed: int
    """Weights an element."""

    @property
    def hit(self) -> float:
        """Experts that are expected to have tokens, routed at random."""
        return expected_experts(self.experts, self.per_token, self.tokens)

    @property
    def flops(self) -> int:
        return 2 * self.tokens * self.per_token * self.values


def _experts(call: Call) -> _Experts | None:
    """`fused_experts(x [t, h], w13 [e, 2i, h], w2 [e, h, i], weights [t, k], ids [t, k], …)`.

    INT4 weights lie two in a byte.
    """
    if not (call.is_tensor(0, 2) and call.is_tensor(1, 3) and call.is_tensor(2, 3) and call.is_tensor(4, 2)):
        return None
    (tokens, hidden), (experts, _, width), per_token = call.shapes[0], call.shapes[1], call.shapes[4][1]
    if not 0 < per_token <= experts or width not in {hidden, hidden // 2}:
        return None
    packed = hidden // width
    values = packed * (call.elements(1) + call.elements(2)) // experts
    return _Experts(tokens, hidden, experts, per_token, values, packed)


def _cost(call: Call) -> Work | None:
    """Cost of the weights of the experts that are hit; packed weights are multiplied in the type of x.

    What follows with a leading axis of as many experts is scales and zero points.
    """
    of = _experts(call)
    if of is None:
        return None
    scales = [index for index in call.tensors if index > 4 and call.shapes[index][:1] == [of.experts]]
    weights = of.hit / of.experts * sum(map(call.bytes, (1, 2, *scales)))
    return Work(weights + 2 * call.bytes(0), of.flops, call.dtypes[1 if of.packed == 1 else 0] or "")


def _in_16_bits(call: Call) -> Work | None:
    of = _experts(call)
    if of is None or call.item_bytes(1) >= HALF_BYTES:
        return None
    return Work(HALF_BYTES * (of.hit * of.values + 2 * of.tokens * of.hidden), of.flops)


COSTS = dict.fromkeys(_FUSED, _cost)
IN_16_BITS = dict.fromkeys(_FUSED, _in_16_bits)
"""What calls on weights of fewer bits would cost in 16 bits."""
