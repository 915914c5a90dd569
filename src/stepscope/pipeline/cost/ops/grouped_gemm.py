"""Grouped matrix multiplications: rows sorted by expert, each multiplied with the weight of its own.

Of the experts' weights those are read that the rows are expected to hit, routed at random. Signatures: torch's
native_functions.yaml, vLLM's csrc/torch_bindings.cpp and csrc/moe/torch_bindings.cpp, sgl-kernel's common_extension.cc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.dtypes import is_floating
from stepscope.pipeline.cost.experts import expected_experts
from stepscope.pipeline.cost.ops.quantised_gemm import FP4
from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.pipeline.cost.ops.call import Call

_PRODUCT_BYTES = 2


def _grouped(call: Call) -> Work | None:
    """`grouped_mm(…, a [rows, k], b [experts, k, n] or [experts, n, k], …)`."""
    return _of(call, 1)


def _grouped_fp4(call: Call) -> Work | None:
    """`fp4_group_mm(out, a [rows, k/2], b [experts, n, k/2], …)`, two values a byte."""
    return _of(call, 2, FP4)


def _of(call: Call, values_an_element: int, multiply_dtype: str | None = None) -> Work | None:
    """Cost by what the inputs are: the first of three axes is the weights, the matrix before it the rows."""
    weights = _first(call, 3)
    if weights is None or weights == 0 or not call.is_tensor(weights - 1, 2):
        return None
    rows, k = call.shapes[weights - 1]
    experts, *sizes = call.shapes[weights]
    if k not in sizes or not experts:
        return None
    n = sizes[0] if sizes[1] == k else sizes[1]
    hit = expected_experts(experts, 1, rows) / experts
    stored = _stored(call, range(weights, len(call.shapes)), experts)
    size = call.bytes(weights - 1) + hit * stored + rows * n * _PRODUCT_BYTES
    return Work(size, 2 * rows * n * k * values_an_element, multiply_dtype or call.dtypes[weights] or "")


def _packed(call: Call) -> Work | None:
    """`moe_wna16_marlin_gemm(a [t, k], …, words [experts, …], …, scales [experts, groups, n], …, weights [t, top])`.

    The last matrix of real numbers is the weights of the chosen experts, of which each token has `top`.
    """
    weights = _first(call, 3)
    scales = _first(call, 3, after=weights, floating=True)
    chosen = [index for index in call.tensors if len(call.shapes[index]) == 2 and _is_floating(call, index)]
    if weights is None or scales is None or not call.is_tensor(0, 2) or chosen[-1] < scales:
        return None
    experts, n, k = call.shapes[weights][0], call.shapes[scales][-1], call.shapes[0][1]
    tokens, top = call.shapes[chosen[-1]]
    if not 0 < top <= experts:
        return None
    hit = expected_experts(experts, top, tokens) / experts
    stored = _stored(call, range(weights, chosen[-1]), experts)
    size = call.bytes(0) + hit * stored + tokens * top * n * call.item_bytes(0)
    return Work(size, 2 * tokens * top * n * k, call.dtypes[0] or "")


def _first(call: Call, dimensions: int, *, after: int | None = None, floating: bool = False) -> int | None:
    found = (
        index
        for index in call.tensors
        if len(call.shapes[index]) == dimensions
        and (after is None or index > after)
        and (not floating or _is_floating(call, index))
    )
    return next(found, None)


def _is_floating(call: Call, index: int) -> bool:
    return is_floating(call.dtypes[index] or "")


def _stored(call: Call, inputs: range, experts: int) -> int:
    """Return the bytes of all experts' weights, with those of their scales and zero points.

    Matrices of integers are the sizes of the groups.
    """
    least = {index: 2 if _is_floating(call, index) else 3 for index in inputs if call.is_tensor(index)}
    parts = [index for index, dimensions in least.items() if len(call.shapes[index]) >= dimensions]
    return sum(call.bytes(index) for index in parts if call.shapes[index][0] == experts)


COSTS: Mapping[str, Callable[[Call], Work | None]] = {
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
    "_C::cutlass_moe_mm": _grouped,
    "sgl_kernel::fp8_blockwise_scaled_grouped_mm": _grouped,
    "_C::cutlass_fp4_group_mm": _grouped_fp4,
    "sgl_kernel::cutlass_fp4_group_mm": _grouped_fp4,
    **dict.fromkeys(("_moe_C::moe_wna16_marlin_gemm", "sgl_kernel::moe_wna16_marlin_gemm"), _packed),
}
