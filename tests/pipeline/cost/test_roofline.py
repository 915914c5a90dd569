"""Rates of a GPU, and the times that follow from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.hardware import Figure, Gpu, find_gpu
from stepscope.pipeline.cost import Bound, Ceilings, Work

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def figure(value: float) -> Figure:
    return Figure(value, "a test")


GPU = Gpu(
    "a GPU",
    ["a GPU"],
    memory_gb_per_s=figure(1000),
    memory_measured_gb_per_s=figure(800),
    bf16_tflops=figure(100),
    bf16_measured_tflops=figure(80),
    fp8_tflops=figure(200),
    link_gb_per_s=figure(50),
    collective_latency_us=figure(6),
    graph_kernel_us=figure(0.5),
)


def ceilings(gpu: Gpu = GPU) -> Ceilings:
    found = Ceilings.of(gpu)
    assert found is not None
    return found


def least(*works: Work) -> Any:
    return ceilings().floor(*works)


def called(known: Ceilings, work: Work) -> Any:
    return known.call_floor(work)


def exchanged(known: Ceilings, count: int, size: float) -> Any:
    return known.exchange(count, size)


def test_measured_rates_go_before_the_datasheets() -> None:
    assert ceilings().gb_per_s == 800
    assert ceilings().tflops == {"BFloat16": 80, "Float8_e4m3fn": 200}


def test_work_takes_the_longer_of_traffic_and_arithmetic() -> None:
    assert least(Work(8e6, 0.08e9)) == (pytest.approx(10), Bound.MEMORY)  # 8 MB at 800 GB/s; 1 µs
    assert least(Work(0.8e6, 8e9)) == (pytest.approx(100), Bound.COMPUTE)  # 1 µs; 8 GFLOP at 80 TFLOPS


@pytest.mark.parametrize(
    ("dtype", "us"), [("BFloat16", 100), ("Float8_e4m3fn", 40), ("Float4", 100)], ids=["bf16", "fp8", "no unit"]
)
def test_a_type_without_a_rate_of_its_own_is_multiplied_as_bf16(dtype: str, us: float) -> None:
    assert least(Work(0, 8e9, dtype)) == (pytest.approx(us), Bound.COMPUTE)


def test_works_of_a_component_overlap_each_type_at_its_own_rate() -> None:
    both = least(Work(4e6, 4e9), Work(4e6, 4e9, "Float8_e4m3fn"))
    assert both == (pytest.approx(50 + 20), Bound.COMPUTE)  # 10 µs of traffic beside it


def test_collectives_take_a_latency_and_their_bytes() -> None:
    assert exchanged(ceilings(), 10, 1e3) == (pytest.approx(10 * 6.02), Bound.LATENCY)
    assert exchanged(ceilings(), 10, 1e6) == (pytest.approx(10 * 26), Bound.MEMORY)


def test_an_all_reduce_of_two_h200() -> None:
    """A rank sends 2 · 1/2 of its 12,288 bytes: 27 ns at 450 GB/s, after 3.65 µs; of 1 GB 2,222 µs."""
    h200 = ceilings(find_gpu("h200", None) or GPU)
    assert exchanged(h200, 1, 12_288) == (pytest.approx(3.6773, abs=1e-4), Bound.LATENCY)
    assert exchanged(h200, 156, 12_288) == (pytest.approx(156 * 3.6773, abs=0.01), Bound.LATENCY)
    assert exchanged(h200, 1, 1e9) == (pytest.approx(3.65 + 2222.22, abs=0.01), Bound.MEMORY)


def test_no_collective_was_measured_below_the_least_time() -> None:
    """Of two ranks each sends half of what is gathered or scattered, and as much as is added up."""
    h200 = ceilings(find_gpu("h200", None) or GPU)
    rows = json.loads((RESULTS / "all-reduce-h200x2.json").read_bytes())["rows"]
    assert len(rows) == 7 * 3 + 5
    for row in rows:
        sent = row["bytes"] if row["collective"].startswith("all-reduce") else row["bytes"] / 2
        assert exchanged(h200, 1, sent)[0] < min(row["us"])
        assert exchanged(h200, 1, sent)[0] <= row["kernel_us"] + 0.005  # the figure is rounded


def test_what_is_not_known_of_links_counts_nothing() -> None:
    assert exchanged(Ceilings(800, {}, link_gb_per_s=50), 10, 1e6) == (pytest.approx(200), Bound.MEMORY)
    assert exchanged(Ceilings(800, {}, collective_latency_us=6), 10, 1e6) == (pytest.approx(60), Bound.LATENCY)
    assert exchanged(Ceilings(800, {}), 10, 1e6) == (0, Bound.LATENCY)


def test_without_a_rate_of_its_memory_a_gpu_has_no_ceilings() -> None:
    assert Ceilings.of(None) is None
    assert Ceilings.of(Gpu("unknown", [])) is None


@pytest.mark.parametrize(("name", "rate"), [("h200", 450), ("rtx-pro-6000", 63)])
def test_links_in_one_direction(name: str, rate: float) -> None:
    found = ceilings(find_gpu(name, None) or GPU)
    assert found.link_gb_per_s == rate
    assert "both directions" in found.sources["link"] or "PCIe" in found.sources["link"]


def test_works_add_up() -> None:
    assert Work(1, 0, "Float", 1) + Work(2, 3, "Float8_e4m3fn") == Work(3, 3, "Float8_e4m3fn", 1)
    assert Work(1, 2, "Float", 3, 4) + Work(1, sent_bytes=5) == Work(2, 2, "Float", 3, 9)


def test_a_work_is_done_several_times() -> None:
    assert Work(1, 2, "Float", 3, 4) * 2.5 == Work(2.5, 5, "Float", 7.5, 10)


def test_no_call_takes_less_than_an_empty_kernel() -> None:
    known = ceilings()
    assert called(known, Work(8e3, 8e6)) == (0.5, Bound.LATENCY)  # 0.01 µs of traffic, 0.1 µs of arithmetic
    assert called(known, Work(8e5, 8e6)) == (pytest.approx(1), Bound.MEMORY)
    assert called(known, Work(8e3, 8e8)) == (pytest.approx(10), Bound.COMPUTE)
    assert least(Work(8e3)) == (pytest.approx(0.01), Bound.MEMORY)  # a component may be part of a kernel
    unknown = Ceilings(800, {})
    assert called(unknown, Work(8e3)) == (pytest.approx(0.01), Bound.MEMORY)
