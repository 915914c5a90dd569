"""Activations quantised for a multiplication: values read once, quantised ones and their scales written once.

All are given as inputs, in an order that differs by library and release. Signatures: vLLM's csrc/torch_bindings.cpp,
sgl-kernel's common_extension.cc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.pipeline.cost.ops.call import Call

_VLLM = (
    "static_scaled_fp8_quant dynamic_scaled_fp8_quant dynamic_per_token_scaled_fp8_quant static_scaled_int8_quant "
    "dynamic_scaled_int8_quant per_token_group_fp8_quant per_token_group_quant_int8"
)
_SGLANG = (
    "sgl_per_token_group_quant_8bit sgl_per_token_group_quant_8bit_v2 sgl_per_token_group_quant_fp8 "
    "sgl_per_token_group_quant_int8 sgl_per_tensor_quant_fp8 sgl_per_token_quant_fp8"
)
_WIDE = {"BFloat16", "Half", "Float"}
_FLOPS = 2
"""Operations a value: compared for the largest, scaled."""


def _quantise_fp4(call: Call) -> Work | None:
    """`scaled_fp4_quant(…)`: half a byte a value, and a scale for 16; tensors of scales are padded to 128 rows."""
    values = next(
        (index for index in call.tensors if call.dtypes[index] in _WIDE and len(call.shapes[index]) > 1), None
    )
    if values is None:
        return None
    count = call.elements(values)
    return Work(call.bytes(values) + count / 2 + count / 16, _FLOPS * count)


def _quantise(call: Call) -> Work | None:
    """Every tensor once; the values are the tensor of most bytes."""
    if len(call.tensors) < 2:
        return None
    values = max(call.tensors, key=call.bytes)
    return Work(call.all_bytes, _FLOPS * call.elements(values))


COSTS: Mapping[str, Callable[[Call], Work | None]] = {
    **{f"_C::{name}": _quantise for name in _VLLM.split()},
    **{f"sgl_kernel::{name}": _quantise for name in _SGLANG.split()},
    "_C::scaled_fp4_quant": _quantise_fp4,
    "sgl_kernel::scaled_fp4_quant": _quantise_fp4,
}
