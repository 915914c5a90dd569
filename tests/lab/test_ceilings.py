"""Each measurement on the CPU, with a clock of our own: what is counted, and that wrong results are refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING

import pytest
import torch

from stepscope.errors import DeviceError, ExitCode
from stepscope.lab import ceilings
from stepscope.lab.ceilings import Bench

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Took:
    us: float
    spread_us: float


@dataclass
class Bound:
    """A device on which each call takes 2 µs, give or take 0.1; it really makes the call."""

    pools: list[int] = field(default_factory=list)

    def __call__(self, call: Callable[[int], object], pools: int) -> Took:
        self.pools.append(pools)
        for number in range(pools):
            call(number)
        return Took(2.0, 0.1)


def bench(timer: Callable[[Callable[[int], object], int], Took] | None = None) -> Bench:
    return Bench(torch.device("cpu"), timer or Bound(), launch=lambda: None, synchronize=lambda: None)


def never(_call: Callable[[int], object], _pools: int) -> Took:
    """A device that does nothing, and says that it did."""
    return Took(2.0, 0.1)


def test_a_copy_counts_bytes_read_and_written() -> None:
    # 4 MB read and 4 MB written in 2 µs: 4e12 bytes/s.
    reached = ceilings.copy_rate(4_000_000, bench())
    assert reached.value == pytest.approx(4000)
    assert reached.spread == pytest.approx(200)  # as 0.1 of 2 µs


def test_a_sum_counts_bytes_read() -> None:
    assert ceilings.read_rate(4_000_000, bench()).value == pytest.approx(2000)


@pytest.mark.parametrize("measurement", [ceilings.bf16_rate, ceilings.fp8_rate])
def test_a_product_counts_two_operations_an_element(measurement: Callable[[int, Bench], ceilings.Reached]) -> None:
    # 2 × 64³ = 524,288 operations in 2 µs: 0.262144e12 a second.
    assert measurement(64, bench()).value == pytest.approx(0.262144)


@pytest.mark.parametrize(
    ("measurement", "size"),
    [(ceilings.copy_rate, 1 << 16), (ceilings.read_rate, 1 << 16), (ceilings.bf16_rate, 64)],
)
def test_a_device_that_did_not_do_the_work_is_refused(
    measurement: Callable[[int, Bench], ceilings.Reached], size: int
) -> None:
    with pytest.raises(DeviceError, match="wrong|not equal") as caught:
        measurement(size, bench(never))
    assert caught.value.exit_code is ExitCode.REMOTE_FAILURE


def test_a_wrong_fp8_product_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_scaled_mm", lambda left, _right, **_: torch.zeros(left.shape, dtype=torch.bfloat16))
    with pytest.raises(DeviceError, match="float8_e4m3fn product"):
        ceilings.fp8_rate(64, bench())


def test_a_device_without_fp8_is_told_from_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("only on compute capability >= 8.9\nException raised from somewhere")

    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    with pytest.raises(NotImplementedError, match=r"^only on compute capability >= 8\.9$"):
        ceilings.fp8_rate(64, bench())


def test_a_launch_is_what_the_host_takes_for_one_of_a_row() -> None:
    """A first row that warms up and takes 1 s, then 30 rows of which 20 take 2 ms and 10 take 4 ms."""
    rows = [1.0, *repeat(2e-3, 20), *repeat(4e-3, 10)]
    ticks = iter(accumulate(chain.from_iterable((0.5, row) for row in rows)))
    calls: Counter[str] = Counter()
    here = Bench(
        torch.device("cpu"),
        Bound(),
        launch=lambda: calls.update(["launch"]),
        synchronize=lambda: calls.update(["wait"]),
        clock=lambda: next(ticks),
    )
    reached = ceilings.launch_latency(500, here)
    assert reached.value == pytest.approx(4.0)  # 2 ms / 500
    assert reached.spread == pytest.approx(4.0)  # quartiles at 4 and 8 µs
    assert calls == {"launch": 31 * 500, "wait": 31}


def test_a_kernel_in_a_graph_is_timed_in_one_graph_of_all() -> None:
    timer = Bound()
    calls: Counter[str] = Counter()
    here = Bench(torch.device("cpu"), timer, launch=lambda: calls.update(["launch"]), synchronize=lambda: None)
    reached = ceilings.graph_kernel_time(1000, here)
    assert (reached.value, reached.spread) == (2.0, 0.1)
    assert timer.pools == [1000]
    assert calls["launch"] == 1000
