"""The least time of collectives, against the recorded measurements and by hand."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from stepscope.hardware import Gpu, best_known, find_gpu

ROOT = Path(__file__).parents[2]
H200, V100, L40S = (find_gpu(None, name) for name in ("NVIDIA H200", "Tesla V100-SXM2-32GB", "NVIDIA L40S"))
RECORDED = json.loads((ROOT / "benchmarks/results/all-reduce-h200x2.json").read_text(encoding="utf-8"))["rows"]


def us(gpu: Gpu | None, size: int, ranks: int | None, collective: str = "all-reduce") -> float:
    found = best_known(gpu, collective, size, ranks)
    assert found is not None
    return found.us


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: f"{row['collective']}, {row['bytes']} B")
def test_nothing_that_was_measured_is_faster(row: dict[str, float | str]) -> None:
    collective = str(row["collective"]).removesuffix(" in one shot")
    assert us(H200, int(row["bytes"]), 2, collective) <= float(row["kernel_us"]) * 1.002


def test_it_is_what_was_measured_where_size_and_ranks_are_the_same() -> None:
    assert us(H200, 8192, 2) == pytest.approx(5.50)
    assert us(H200, 1 << 20, 2) == pytest.approx(12.3)
    assert us(H200, 12_288, 2) == pytest.approx(5.86)  # as 64 KiB take, although 12,288 B once took 6.24
    assert us(V100, 8192, 4) == pytest.approx(5.0)


def test_between_sizes_it_lies_between_and_beyond_it_grows_as_the_bytes() -> None:
    # half the way from 1 to 16 MiB in logarithms are 4 MiB: the root of 12.3 × 71.8
    assert us(H200, 4 << 20, 2) == pytest.approx((12.3 * 71.8) ** 0.5)
    assert us(H200, 1 << 30, 2) == pytest.approx(4 * 885, rel=0.001)
    assert us(H200, 1, 2) == pytest.approx(4.54)


def test_more_ranks_send_more_and_latency_stays() -> None:
    # of n ranks each sends (n − 1)/n: of eight 7/8, of two 1/2
    assert us(H200, 16 << 20, 8) == pytest.approx(4.54 + (71.8 - 4.54) * 7 / 4)
    assert us(H200, 16, 8) == pytest.approx(4.54)


def test_of_other_gpus_only_small_messages_are_compared_and_with_the_slower_one() -> None:
    elsewhere = best_known(L40S, "all-reduce", 32 << 10, 4)
    assert elsewhere is not None
    assert elsewhere.us == pytest.approx(11.8)
    assert not elsewhere.same_gpu
    assert best_known(L40S, "all-reduce", (32 << 10) + 1, 4) is None
    assert best_known(None, "all-reduce", 8192, None) is not None


def test_groups_over_several_hosts_and_other_operations_are_not_known() -> None:
    assert best_known(H200, "all-reduce", 8192, 16) is None
    assert best_known(H200, "all-reduce", 8192, 1) is None
    assert best_known(H200, "broadcast", 8192, 2) is None


def test_every_row_ascends_and_says_where_it_comes_from() -> None:
    file = tomllib.loads((ROOT / "src/stepscope/hardware/collectives.toml").read_text(encoding="utf-8"))
    for row in file["measured"]:
        sizes = [size for size, _ in row["us_by_bytes"]]
        assert sizes == sorted(set(sizes))
        assert min(sizes) > 0
        assert all(time > 0 for _, time in row["us_by_bytes"])
        assert "benchmarks/results/" in row["source"] or "github.com/" in row["source"]
