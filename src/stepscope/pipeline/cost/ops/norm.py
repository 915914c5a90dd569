"""Norms over the last axis: values read and written once, with their weight, and with the residual if it is added."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


def _each_once(call: Call) -> Work | None:
    """`add_rmsnorm(out, x, residual, residual out, weight)` and its kind: each is given, read or written once."""
    return Work(call.all_bytes, (_FLOPS + 1) * call.elements(0)) if call.tensors and call.is_tensor(0) else None


COSTS: Mapping[str, Callable[[Call], Work | None]] = {
    "aten::_fused_rms_norm": _into_new,
    "aten::rms_norm": _into_new,
    "aten::native_layer_norm": _into_new,
    "aiter::rms_norm": _into_new,
    **dict.fromkeys(
        ("sgl_kernel::rmsnorm", "sgl_kernel::gemma_rmsnorm", "_C::rms_norm", "aiter::rmsnorm"), _into_given
    ),
    **dict.fromkeys(
        ("sgl_kernel::fused_add_rmsnorm", "sgl_kernel::gemma_fused_add_rmsnorm", "_C::fused_add_rms_norm"),
        _with_residual,
    ),
    **dict.fromkeys(
        ("aiter::add_rmsnorm", "aiter::rmsnorm2d_fwd_with_add_ck", "_C::rms_norm_static_fp8_quant"), _each_once
    ),
}
"""Signatures: torch's native_functions.yaml, sgl-kernel's common_extension.cc, vLLM's csrc/torch_bindings.cpp, and
aiter's csrc/include/rocm_ops.hpp."""
