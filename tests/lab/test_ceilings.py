"""Each measurement on the CPU, with a clock of our own: what is counted, and that wrong results are refused."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from stepscope.errors import DeviceError, ExitCode
from stepscope.lab import ceilings
from stepscope.lab.ceilings import Bench
from stepscope.lab.timing import time_bursts
from stepscope.paged_mla.bench.timing import Timing

if TYPE_CHECKING:
    from collections.abc import Callable


TOOK = Timing(2.0, 0.1)


def bench(time_call: Callable[[Callable[[], object]], Timing] | None = None) -> Bench:
    return Bench(torch.device("cpu"), time_call or really, in_a_graph, launch=lambda: None, synchronize=lambda: None)


def really(call: Callable[[], object]) -> Timing:
    """A device on which each call takes 2 µs, give or take 0.1; it really makes the call."""
    call()
    return TOOK


def never(call: Callable[[], object]) -> Timing:  # noqa: ARG001 -- the point of it
    """A device that does nothing, and says that it did."""
    return TOOK


def in_a_graph(call: Callable[[int], object], count: int) -> Timing:
    for number in range(count):
        call(number)
    return TOOK


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
    with pytest.raises(DeviceError, match=r"wrong|not equal") as caught:
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
        really,
        in_a_graph,
        launch=lambda: calls.update(["launch"]),
        synchronize=lambda: calls.update(["wait"]),
        clock=lambda: next(ticks),
    )
    reached = ceilings.launch_latency(500, here)
    assert reached.value == pytest.approx(4.0)  # 2 ms / 500
    assert reached.spread == pytest.approx(4.0)  # quartiles at 4 and 8 µs
    assert calls == {"launch": 31 * 500, "wait": 31}


def test_a_kernel_in_a_graph_is_timed_in_one_graph_of_all() -> None:
    graphs: list[int] = []
    calls: Counter[str] = Counter()

    def time_graph(call: Callable[[int], object], count: int) -> Timing:
        graphs.append(count)
        return in_a_graph(call, count)

    here = Bench(
        torch.device("cpu"), really, time_graph, launch=lambda: calls.update(["launch"]), synchronize=lambda: None
    )
    reached = ceilings.graph_kernel_time(1000, here)
    assert (reached.value, reached.spread) == (2.0, 0.1)
    assert graphs == [1000]
    assert calls["launch"] == 1000


def test_a_burst_is_warmed_up_and_its_median_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three bursts of 3 calls that do not count and 10 that do; on this device, call n takes n ms."""
    calls = 0
    rests: list[float] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = calls * (calls + 1) / 2

        def elapsed_time(self, end: Event) -> float:
            return end.at - self.at

    def call() -> None:
        nonlocal calls
        calls += 1

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr("time.sleep", rests.append)
    timing = time_bursts(call)
    assert (calls, len(rests)) == (39, 3)
    # Timed are calls 4 to 13, 17 to 26 and 30 to 39: 21.5 in the middle.
    assert timing.us == pytest.approx(21_500)
    assert timing.spread_us == pytest.approx(
        np.subtract(*np.quantile([*range(4, 14), *range(17, 27), *range(30, 40)], [0.75, 0.25])) * 1e3
    )
