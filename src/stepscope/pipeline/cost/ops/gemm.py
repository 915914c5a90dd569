"""Matrix multiplications: both factors read once, the product written once, 2·m·n·k operations."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stepscope.pipeline.cost.ops.call import Call

HALF_BYTES = 2
"""Of a value in 16 bits."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """[batch, m, k] × [batch, k, n], as a linear layer has it: the second factor is the weight, of n × k values."""

    batch: int
    m: int
    n: int
    k: int
    multiply_dtype: str
    bytes: int
    """Of both factors as they are stored, their scales and biases, and the product."""
    by_batch: bool = False
    """Whether both factors have a leading axis, even if of length 1."""

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The second factor as a linear layer stores it: [n, k]; by batch [batch, k, n], as absorbed MLA multiplies."""
        return (self.n, self.k) if self.batch == 1 else (self.batch, self.k, self.n)

    @property
    def work(self) -> Work:
        """What it costs."""
        return Work(self.bytes, 2 * self.batch * self.m * self.n * self.k, self.multiply_dtype)

    @property
    def in_16_bits(self) -> Work:
        """What it would cost if both factors and the product were in 16 bits."""
        values = self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)
        return Work(HALF_BYTES * values, self.work.flops)


def product(  # noqa: PLR0913 -- which inputs of an op are what
    call: Call,
    first: int,
    second: int,
    *,
    out: int | None = None,
    out_bytes: int | None = None,
    extra: Iterable[int] = (),
    by_column: bool = False,
) -> Gemm | None:
    """Return [.., m, k] × [k, n]; None where the shapes do not fit.

    Args:
        call: the call.
        first: index of the first factor.
        second: of the second: [k, n], or [n, k].
        out: of the product, if it is given.
        out_bytes: of an element of the product, where neither `out` nor the first factor's type tells.
        extra: of scales and biases, whether given or not.
        by_column: whether the second factor is stored [n, k].
    """
    if not (call.is_tensor(first) and call.is_tensor(second, 2) and call.shapes[first]):
        return None
    *outer, k = call.shapes[first]
    inner, n = reversed(call.shapes[second]) if by_column else call.shapes[second]
    if inner != k or (out is not None and not (call.is_tensor(out) and call.elements(out) == prod(outer) * n)):
        return None
    item = call.item_bytes(first) if out is None else call.item_bytes(out)
    given = [first, second, *(index for index in extra if call.is_tensor(index))]
    size = sum(map(call.bytes, given)) + prod(outer) * n * (out_bytes or item)
    return Gemm(1, prod(outer), n, k, call.dtypes[second] or "", size)


def _by_batch(call: Call, first: int, extra: Iterable[int] = ()) -> Gemm | None:
    """[b, m, k] × [b, k, n] from inputs `first` and `first` + 1."""
    if not (call.is_tensor(first, 3) and call.is_tensor(first + 1, 3)):
        return None
    (batch, m, k), (batch_too, inner, n) = call.shapes[first], call.shapes[first + 1]
    if batch != batch_too or inner != k:
        return None
    given = [first, first + 1, *(index for index in extra if call.is_tensor(index))]
    size = sum(map(call.bytes, given)) + batch * m * n * call.item_bytes(first)
    return Gemm(batch, m, n, k, call.dtypes[first + 1] or "", size, by_batch=True)


def _linear(call: Call) -> Gemm | None:
    """`linear(x, weight [n, k], bias)`, as of torch, aiter and vLLM on ROCm."""
    return product(call, 0, 1, extra=(2,), by_column=True)


def _into(call: Call) -> Gemm | None:
    """`dsv3_fused_a_gemm(out, a, b [k, n])`, `dsv3_router_gemm(out, a, b [n, k])`."""
    return product(call, 1, 2, out=0) or product(call, 1, 2, out=0, by_column=True)


READERS: Mapping[str, Callable[[Call], Gemm | None]] = {
    "aten::mm": lambda call: product(call, 0, 1),
    "aten::addmm": lambda call: product(call, 1, 2, extra=(0,)),
    "aten::_addmm_activation": lambda call: product(call, 1, 2, extra=(0,)),
    "aten::bmm": lambda call: _by_batch(call, 0),
    "aten::baddbmm": lambda call: _by_batch(call, 1, extra=(0,)),
    "aten::linear": _linear,
    "aiter::gemm_a16w16": _linear,
    "vllm::rocm_unquantized_gemm": _linear,
    "sgl_kernel::dsv3_fused_a_gemm": _into,
    "sgl_kernel::dsv3_router_gemm": _into,
    "_C::dsv3_fused_a_gemm": _into,
}
"""Signatures: torch's native_functions.yaml, aiter/ops/gemm_op_a16w16.py, sgl-kernel's common_extension.cc, vLLM's
csrc/torch_bindings.cpp."""
