"""Norms over the last axis: values read and written once, with their weight, and with the residual if it is added."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from stepscope.pipeline.cost.ops.call import Call

_FLOPS = 4
"""Operations a value: square, add, scale, multiply by the weight."""


def _into_new(call: Call) -> Work | None:
    """`rms_norm(x, normalized_shape, weight)`: the result is as large as x."""
    if not call.is_tensor(0):
        return None
    parameters = sum(call.bytes(index) for index in call.tensors[1:])
    return Work(2 * call.bytes(0) + parameters, _FLOPS * call.elements(0))


def _into_given(call: Call) -> Work | None:
    """`rmsnorm(out, x, weight)`."""
    if not all(map(call.is_tensor, range(3))):
        return None
    return Work(sum(map(call.bytes, range(3))), _FLOPS * call.elements(1))


def _with_residual(call: Call) -> Work | None:
    """`fused_add_rmsnorm(x, residual, weight)`: both are read, and both are written."""
    if not all(map(call.is_tensor, range(3))):
        return None
    return Work(2 * call.bytes(0) + 2 * call.bytes(1) + call.bytes(2), (_FLOPS + 1) * call.elements(0))


COSTS = {
    "aten::_fused_rms_norm": _into_new,
    "aten::rms_norm": _into_new,
    "aten::native_layer_norm": _into_new,
    "sgl_kernel::rmsnorm": _into_given,
    "_C::rms_norm": _into_given,
    "sgl_kernel::fused_add_rmsnorm": _with_residual,
    "_C::fused_add_rms_norm": _with_residual,
}
