"""A GPU's ceilings, one measurement a function: random data, a result that is checked, the median of repetitions.

Numbers that are all alike need less power, so that clocks stay higher than in real work; hence random data.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from stepscope.errors import DeviceError
from stepscope.lab.timing import summary

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.paged_mla.bench.timing import Timing

_WRONG = 0.05
"""Relative error of a product's rows; rounding to bf16 gives 0.002, sums in fewer bits under FP8 0.01 at most."""
_CHECKED_ROWS = 16
_REPETITIONS = 30


@dataclass(frozen=True, slots=True)
class Bench:
    """A device, and how to use it."""

    device: torch.device
    time_call: Callable[[Callable[[], object]], Timing]
    """Times a call on the device, many times over."""
    time_graph: Callable[[Callable[[int], object], int], Timing]
    """Times `call(i)` for each i below a number, all of them in one graph."""
    launch: Callable[[], object]
    """Launches an empty kernel."""
    synchronize: Callable[[], object]
    """Waits for the device."""
    clock: Callable[[], float] = time.perf_counter
    """The host's, in seconds."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A rate or time that was reached, and the distance between the quartiles, in the same unit."""

    value: float
    spread: float


def copy_rate(size: int, bench: Bench) -> Reached:
    """Return the rate of a copy from device to device in 1e9 bytes/s, bytes read plus bytes written.

    Args:
        size: bytes of the tensor.
        bench: the device.

    Raises:
        DeviceError: the copy is not equal to its source.
    """
    source = torch.rand(size // 4, device=bench.device)
    target = torch.empty_like(source)
    timing = bench.time_call(lambda: target.copy_(source))
    if not torch.equal(target, source):
        raise DeviceError("calibrate: a copy on this GPU is not equal to its source")
    return _rate(2 * source.nbytes / 1e3, timing)


def read_rate(size: int, bench: Bench) -> Reached:
    """Return the rate of reading a tensor to sum it up, in 1e9 bytes/s.

    Raises:
        DeviceError: the sum is wrong.
    """
    source = torch.rand(size // 4, device=bench.device)
    total = torch.empty((), device=bench.device)
    timing = bench.time_call(lambda: torch.sum(source, dim=0, out=total))
    expected = float(source.sum(dtype=torch.float64))
    if not abs(float(total) - expected) <= 1e-4 * expected:
        raise DeviceError("calibrate: a sum on this GPU is wrong")
    return _rate(source.nbytes / 1e3, timing)


def bf16_rate(size: int, bench: Bench) -> Reached:
    """Return the rate of a BF16 product of two square matrices in 1e12 operations/s.

    Raises:
        DeviceError: the product is wrong.
    """
    left, right = (torch.randn(size, size, device=bench.device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(left)
    timing = bench.time_call(lambda: torch.matmul(left, right, out=product))
    _check_product(product, left, right)
    return _rate(2 * size**3 / 1e6, timing)


def fp8_rate(size: int, bench: Bench) -> Reached:
    """Return the rate of an FP8 (e4m3) product of two square matrices with one scale each, in 1e12 operations/s.

    Raises:
        NotImplementedError: this GPU or this torch cannot multiply FP8.
        DeviceError: the product is wrong.
    """
    left, right = (torch.randn(size, size, device=bench.device).to(torch.float8_e4m3fn) for _ in range(2))
    right = right.t()  # the unit wants its columns one after another
    one = torch.ones((), device=bench.device)

    def multiply() -> torch.Tensor:
        # Sums in fast registers, as engines multiply.
        return torch._scaled_mm(  # noqa: SLF001 -- torch has no public name for it before 2.10
            left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    try:
        product = multiply()
    except (AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
        raise NotImplementedError(str(error).partition("\n")[0]) from error
    timing = bench.time_call(multiply)
    _check_product(product, left, right)
    return _rate(2 * size**3 / 1e6, timing)


def launch_latency(count: int, bench: Bench) -> Reached:
    """Return what a launch costs the host in µs, when `count` follow each other.

    There must be fewer than the driver queues, or the host waits for the device.
    """
    each = []
    for _ in range(_REPETITIONS + 1):
        bench.synchronize()
        start = bench.clock()
        for _ in range(count):
            bench.launch()
        each.append((bench.clock() - start) / count * 1e6)
    timing = summary(each[1:])  # the first one warms up
    return Reached(timing.us, timing.spread_us)


def graph_kernel_time(count: int, bench: Bench) -> Reached:
    """Return what an empty kernel costs the device in µs, in the replay of a graph of `count` of them."""
    timing = bench.time_graph(lambda _: bench.launch(), count)
    return Reached(timing.us, timing.spread_us)


def _rate(work: float, timing: Timing) -> Reached:
    """Return work per time; a small spread of times is as large, relatively, as that of rates."""
    rate = work / timing.us
    return Reached(rate, rate * timing.spread_us / timing.us)


def _check_product(product: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    expected = left[:_CHECKED_ROWS].double() @ right.double()
    error = float((product[:_CHECKED_ROWS].double() - expected).norm() / expected.norm())
    if not error <= _WRONG:
        raise DeviceError(f"calibrate: a {left.dtype} product on this GPU is wrong (relative error {error:.2g})")
