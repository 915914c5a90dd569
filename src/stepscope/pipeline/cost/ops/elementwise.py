"""Elementwise ops: every input read once, a result of their common shape written once."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from stepscope.pipeline.cost.ops.call import Call

_NAMES = (
    "abs add addcdiv addcmul bitwise_and bitwise_or ceil clamp clamp_max clamp_min cos div erf exp exp2 floor "
    "floor_divide gelu hardtanh leaky_relu lerp log log2 logical_and logical_or masked_fill maximum minimum mish mul "
    "neg pow reciprocal relu remainder round rsqrt rsub sigmoid sign silu sin softplus sqrt square sub tanh tril triu "
    "where"
)
_COMPARISONS = "eq ge gt isfinite isinf isnan le logical_not lt ne"
_GATED = (
    *(
        f"{library}::{name}"
        for library in ("sgl_kernel", "_C")
        for name in ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "mul_and_silu")
    ),
    "sglang::_run_activation_inplace",
)


def _elementwise(call: Call) -> Work | None:
    """Cost of an op that computes new values; the result has the widest type among its inputs."""
    return _of(call, max((call.item_bytes(index) for index in call.tensors), default=0))


def _comparison(call: Call) -> Work | None:
    return _of(call, 1)


def _of(call: Call, result_bytes: int) -> Work | None:
    tensors = call.tensors
    if not tensors:
        return None
    shape = broadcast([list(call.shapes[index]) for index in tensors])
    if shape is None:
        return None
    read = sum(call.bytes(index) for index in tensors)
    return Work(read + prod(shape) * result_bytes, prod(shape))


def _gated(call: Call) -> Work | None:
    """`silu_and_mul(out [.., n], gate and up [.., 2n])`, or the other way round."""
    if len(call.tensors) < 2:
        return None
    out, joined = sorted(call.tensors[:2], key=call.elements)
    if 2 * call.elements(out) != call.elements(joined):
        return None
    return Work(call.bytes(out) + call.bytes(joined), 2 * call.elements(out))


def broadcast(shapes: list[list[int]]) -> list[int] | None:
    """Return the shape that these shapes have together by torch's rules; None where they do not fit."""
    result: list[int] = []
    for axis in range(1, max(map(len, shapes), default=0) + 1):
        sizes = {shape[-axis] for shape in shapes if len(shape) >= axis} - {1}
        if len(sizes) > 1:
            return None
        result.insert(0, sizes.pop() if sizes else 1)
    return result


COSTS = {
    **{f"aten::{name}{suffix}": _elementwise for name in _NAMES.split() for suffix in ("", "_")},
    **{f"aten::{name}": _comparison for name in _COMPARISONS.split()},
    **dict.fromkeys(_GATED, _gated),
}
