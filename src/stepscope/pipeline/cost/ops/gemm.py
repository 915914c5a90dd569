"""Matrix multiplications: both factors read once, the product written once, 2·m·n·k operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.dtypes import item_bytes
from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.pipeline.cost.ops.call import Call


@dataclass(frozen=True, slots=True)
class Gemm:
    """[batch, m, k] × [batch, k, n], as a linear layer has it: the second factor is the weight, stored [n, k]."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    """Of the second factor."""
    product_dtype: str
    extra_bytes: int = 0
    """Of scales and biases."""
    by_batch: bool = False
    """Whether both factors have a leading axis, even if of length 1."""

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The second factor as a linear layer stores it: [n, k]; by batch [batch, k, n], as absorbed MLA multiplies."""
        return (self.n, self.k) if self.batch == 1 else (self.batch, self.k, self.n)

    def work(self) -> Work:
        """Return what it costs; both factors are taken to be of one type."""
        factors = self.batch * (self.m * self.k + self.k * self.n) * item_bytes(self.dtype)
        product = self.batch * self.m * self.n * item_bytes(self.product_dtype)
        flops = 2 * self.batch * self.m * self.n * self.k
        return Work(factors + product + self.extra_bytes, flops, self.dtype)


def as_gemm(call: Call) -> Gemm | None:
    """Return the multiplication that an op computes; None where it is none, or its shapes do not fit together."""
    read = _READERS.get(call.op)
    return read(call) if read else None


def _two(call: Call, first: int, *, product_dtype: str | None = None, extra: tuple[int, ...] = ()) -> Gemm | None:
    """[m, k] × [k, n], or both by batch, from inputs `first` and `first` + 1."""
    dimensions = len(call.shapes[first]) if call.is_tensor(first) else 0
    if dimensions not in {2, 3} or not call.is_tensor(first + 1, dimensions):
        return None
    (*outer, m, k), (*outer_too, inner, n) = call.shapes[first], call.shapes[first + 1]
    if outer != outer_too or inner != k:
        return None
    dtype = call.dtypes[first + 1] or ""
    extras = sum(call.bytes(index) for index in extra if call.is_tensor(index))
    return Gemm(outer[0] if outer else 1, m, n, k, dtype, product_dtype or dtype, extras, bool(outer))


def _added(call: Call) -> Gemm | None:
    """`addmm(bias, a, b)`."""
    return _two(call, 1, extra=(0,))


def _scaled(call: Call) -> Gemm | None:
    """`_scaled_mm(a, b, scale_a, scale_b)` and its kind; the product is 16 bits wide."""
    return _two(call, 0, product_dtype="BFloat16", extra=(2, 3))


def _scaled_into(call: Call) -> Gemm | None:
    """`cutlass_scaled_mm(out, a, b, scale_a, scale_b)`."""
    return _two(call, 1, product_dtype=call.dtypes[0] if call.dtypes else None, extra=(3, 4))


def _work(call: Call) -> Work | None:
    gemm = as_gemm(call)
    return gemm.work() if gemm else None


_READERS: Mapping[str, Callable[[Call], Gemm | None]] = {
    "aten::mm": lambda call: _two(call, 0),
    "aten::bmm": lambda call: _two(call, 0),
    "aten::addmm": _added,
    "aten::baddbmm": _added,
    "aten::_scaled_mm": _scaled,
    "sgl_kernel::fp8_scaled_mm": _scaled,
    "_C::cutlass_scaled_mm": _scaled_into,
}
COSTS: Mapping[str, Callable[[Call], Work | None]] = dict.fromkeys(_READERS, _work)
