"""Grouped matrix multiplications: rows sorted by expert, each multiplied with the weight of its own.

Of the experts' weights those are read that the rows are expected to hit, routed at random. Signatures: torch's
native_functions.yaml, vLLM's csrc/torch_bindings.cpp and csrc/moe/torch_bindings.cpp, sgl-kernel's common_extension.cc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope.dtypes import is_floating
from stepscope.pipeline.cost.experts import expected_experts
from stepscope.pipeline.cost.ops.gemm import HALF_BYTES
from stepscope.pipeline.cost.ops.quantised_gemm import FP4
from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.pipeline.cost.ops.call import Call


class _Product(NamedTuple):
    """Rows sorted by expert, times [k, n] of each: the rows' own sizes, and where the weights stand."""

    weights: int
    """Index of the input."""
    experts: int
    hit: float
    """Experts that are expected to have rows."""
    rows: int
    n: int
    k: int
    values_an_element: int = 1
    """Of the weights and the rows; k is in elements."""

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.n * self.k * self.values_an_element

    @property
    def in_16_bits(self) -> Work:
        """What it would cost in 16 bits: of the weights those of the experts that are hit are read, as today."""
        k = self.k * self.values_an_element
        return Work(HALF_BYTES * (self.hit * self.n * k + self.rows * (self.n + k)), self.flops)


def _grouped(call: Call, values_an_element: int = 1) -> _Product | None:
    """`grouped_mm(…, a [rows, k], b [experts, k, n] or [experts, n, k], …)`.

    By what the inputs are: the first of three axes is the weights, the matrix before it the rows.
    """
    weights = _first(call, 3)
    if weights is None or weights == 0 or not call.is_tensor(weights - 1, 2):
        return None
    rows, k = call.shapes[weights - 1]
    experts, *sizes = call.shapes[weights]
    if k not in sizes or not experts:
        return None
    n, hit = sizes[0] if sizes[1] == k else sizes[1], expected_experts(experts, 1, rows)
    return _Product(weights, experts, hit, rows, n, k, values_an_element)


def _grouped_fp4(call: Call) -> _Product | None:
    """`fp4_group_mm(out, a [rows, k/2], b [experts, n, k/2], …)`, two values a byte."""
    return _grouped(call, 2)


def _cost(call: Call, of: _Product | None) -> Work | None:
    if of is None:
        return None
    stored = _stored(call, range(of.weights, len(call.shapes)), of.experts)
    size = call.bytes(of.weights - 1) + of.hit / of.experts * stored + of.rows * of.n * HALF_BYTES
    return Work(size, of.flops, FP4 if of.values_an_element > 1 else call.dtypes[of.weights] or "")


class _Packed(NamedTuple):
    """Tokens, each multiplied with the packed weights of some experts."""

    product: _Product
    chosen: int
    """Index of the weights of the chosen experts."""


def _packed(call: Call) -> _Packed | None:
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
    hit = expected_experts(experts, top, tokens)
    return _Packed(_Product(weights, experts, hit, tokens * top, n, k), chosen[-1])


def _packed_cost(call: Call) -> Work | None:
    of = _packed(call)
    if of is None:
        return None
    product = of.product
    stored = _stored(call, range(product.weights, of.chosen), product.experts)
    size = call.bytes(0) + product.hit / product.experts * stored + product.rows * product.n * call.item_bytes(0)
    return Work(size, product.flops, call.dtypes[0] or "")


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


def _in_16_bits(call: Call, of: _Product | None) -> Work | None:
    return of.in_16_bits if of is not None and call.item_bytes(of.weights) < HALF_BYTES else None


def _packed_in_16_bits(call: Call) -> Work | None:
    of = _packed(call)
    return of and of.product.in_16_bits


_GROUPED = (
    *("aten::_grouped_mm", "aten::_scaled_grouped_mm", "_C::cutlass_moe_mm"),
    "sgl_kernel::fp8_blockwise_scaled_grouped_mm",
)
_FP4 = ("_C::cutlass_fp4_group_mm", "sgl_kernel::cutlass_fp4_group_mm")
_PACKED = ("_moe_C::moe_wna16_marlin_gemm", "sgl_kernel::moe_wna16_marlin_gemm")

COSTS: Mapping[str, Callable[[Call], Work | None]] = {
    **dict.fromkeys(_GROUPED, lambda call: _cost(call, _grouped(call))),
    **dict.fromkeys(_FP4, lambda call: _cost(call, _grouped_fp4(call))),
    **dict.fromkeys(_PACKED, _packed_cost),
}
IN_16_BITS: Mapping[str, Callable[[Call], Work | None]] = {
    **dict.fromkeys(_GROUPED, lambda call: _in_16_bits(call, _grouped(call))),
    **dict.fromkeys(_FP4, lambda call: _in_16_bits(call, _grouped_fp4(call))),
    **dict.fromkeys(_PACKED, _packed_in_16_bits),
}
"""What calls on weights of fewer bits would cost in 16 bits."""
