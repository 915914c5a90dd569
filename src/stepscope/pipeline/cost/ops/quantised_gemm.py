"""Matrix multiplications by quantised weights: their stored bytes, scales included, and operations by logical k.

Signatures: torch's native_functions.yaml, sgl-kernel's common_extension.cc, vLLM's csrc/torch_bindings.cpp and
fp8_utils.py, SGLang's deep_gemm_wrapper, bitsandbytes' _ops.py, ONNX Runtime's ContribOperators.md. Those of the packed
formats grew inputs with each release, so that weights and scales are told by what they are, not by where they stand.
The type of quantised factors does not tell that of the product, which is in 16 bits.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from stepscope.dtypes import is_floating
from stepscope.pipeline.cost.ops.gemm import HALF_BYTES, Gemm, product

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.pipeline.cost.ops.call import Call

FP4 = "Float4"
_IN_A_BYTE = 2
"""Values of 4 bits."""


def _scaled(call: Call) -> Gemm | None:
    """`scaled_mm(a [m, k], b [k, n], scale_a, scale_b, …)`."""
    return product(call, 0, 1, out_bytes=HALF_BYTES, extra=(2, 3))


def _scaled_by_column(call: Call) -> Gemm | None:
    """`block_scaled_mm(a [m, k], b [n, k], scale_a, scale_b, …)`."""
    return product(call, 0, 1, out_bytes=HALF_BYTES, extra=(2, 3), by_column=True)


def _scaled_into(call: Call) -> Gemm | None:
    """`cutlass_scaled_mm(out, a [m, k], b [k, n], scale_a, scale_b, …)`."""
    return product(call, 1, 2, out=0, extra=(3, 4))


def _deep_gemm(call: Call) -> Gemm | None:
    """`gemm_nt(a [m, k], scale_a, b [n, k], scale_b, out [m, n], …)`."""
    return product(call, 0, 2, out=4, extra=(1, 3), by_column=True)


def _fp4_into(call: Call) -> Gemm | None:
    """`cutlass_scaled_fp4_mm(out, a [m, k/2], b [n, k/2], scale_a, scale_b, alpha)`, two values a byte."""
    return _unpacked(product(call, 1, 2, out=0, extra=(3, 4, 5), by_column=True))


def _fp4(call: Call) -> Gemm | None:
    """`mm_fp4(a [m, k/2], b [k/2, n], scale_a, scale_b, alpha, …)`, two values a byte."""
    return _unpacked(product(call, 0, 1, out_bytes=HALF_BYTES, extra=(2, 3, 4)))


def _unpacked(packed: Gemm | None) -> Gemm | None:
    return packed and replace(packed, k=_IN_A_BYTE * packed.k, multiply_dtype=FP4)


def _packed(call: Call) -> Gemm | None:
    """`gemm(a [m, k], …, weight in int32 words, …, scales [groups, n], …)`: Marlin, AWQ, GPTQ, Machete.

    Of what follows the weight, matrices are scales and zero points and read once. Vectors are permutations, biases and
    the workspace: left out.
    """
    if not call.is_tensor(0, 2):
        return None
    matrices = [index for index in call.tensors[1:] if len(call.shapes[index]) == 2 and call.elements(index)]
    weight = next((index for index in matrices if call.dtypes[index] == "Int"), None)
    stored = [index for index in matrices if weight is not None and index >= weight]
    scales = next((index for index in stored if is_floating(call.dtypes[index] or "")), None)
    if scales is None:
        return None
    (m, k), n = call.shapes[0], call.shapes[scales][-1]
    size = call.bytes(0) + sum(map(call.bytes, stored)) + m * n * call.item_bytes(0)
    return Gemm(1, m, n, k, call.dtypes[0] or "", size)


def _in_4_bits(call: Call) -> Gemm | None:
    """`gemm(x [.., m, k], weight of n·k values of 4 bits in any layout, scales, …)`; all inputs are read once."""
    if not (call.is_tensor(0) and call.is_tensor(1) and call.shapes[0] and is_floating(call.dtypes[0] or "")):
        return None
    *outer, k = call.shapes[0]
    values = _IN_A_BYTE * call.bytes(1)
    if is_floating(call.dtypes[1] or "") or not k or values % k:
        return None
    m, n = prod(outer), values // k
    return Gemm(1, m, n, k, call.dtypes[0] or "", call.all_bytes + m * n * call.item_bytes(0))


def _in_8_bits(call: Call) -> Gemm | None:
    """`_weight_int8pack_mm(x [m, k], weight [n, k], scales [n])`, which multiplies in the type of x."""
    gemm = product(call, 0, 1, out_bytes=HALF_BYTES, extra=(2,), by_column=True)
    return gemm and replace(gemm, multiply_dtype=call.dtypes[0] or "")


def _gguf(call: Call) -> Gemm | None:
    """`ggml_mul_mat_a8(weight [n, bytes of a row], x [m, k], type, row)`; blocks hold their scales."""
    if not (call.is_tensor(0, 2) and call.is_tensor(1, 2)):
        return None
    n, (m, k) = call.shapes[0][0], call.shapes[1]
    size = call.bytes(0) + call.bytes(1) + m * n * call.item_bytes(1)
    return Gemm(1, m, n, k, call.dtypes[1] or "", size)


_LIBRARIES = ("_C", "sgl_kernel", "sglang")
READERS: Mapping[str, Callable[[Call], Gemm | None]] = {
    "aten::_scaled_mm": _scaled,
    "sgl_kernel::fp8_scaled_mm": _scaled,
    "sgl_kernel::int8_scaled_mm": _scaled,
    "sgl_kernel::fp8_blockwise_scaled_mm": _scaled,
    "vllm::w8a8_triton_block_scaled_mm_func": _scaled_by_column,
    "_C::cutlass_scaled_mm": _scaled_into,
    "_C::cutlass_scaled_mm_azp": _scaled_into,
    "sglang::deep_gemm_fp8_fp8_bf16_nt": _deep_gemm,
    "vllm::fp8_gemm_nt_op": _deep_gemm,
    **{f"{library}::cutlass_scaled_fp4_mm": _fp4_into for library in _LIBRARIES},
    "vllm::flashinfer_mm_fp4": _fp4,
    **{
        f"{library}::{name}": _packed
        for library in _LIBRARIES
        for name in ("gptq_marlin_gemm", "marlin_gemm", "awq_gemm", "gptq_gemm", "machete_mm")
    },
    "aten::_weight_int4pack_mm": _in_4_bits,
    "aten::_weight_int8pack_mm": _in_8_bits,
    "bitsandbytes::gemv_4bit": _in_4_bits,
    **{f"{library}::MatMulNBits": _in_4_bits for library in ("com.microsoft", "onnxruntime")},
    **{f"{library}::ggml_mul_mat{kind}_a8": _gguf for library in ("_C", "sgl_kernel") for kind in ("", "_vec")},
}
