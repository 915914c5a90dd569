from __future__ import annotations

import pytest

from stepscope import units


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0.0 µs"),
        (0.04, "0.0 µs"),
        (848.54, "848.5 µs"),
        (999.9, "999.9 µs"),
        (1_000, "1.00 ms"),
        (66_186.1, "66.19 ms"),
        (1_420_000, "1.42 s"),
        (-66_190, "-66.19 ms"),
    ],
)
def test_time(us: float, text: str) -> None:
    assert units.time(us) == text


@pytest.mark.parametrize(("us", "text"), [(999.96, "1.00 ms"), (999_996.0, "1.00 s"), (999.94, "999.9 µs")])
def test_a_time_that_rounds_to_a_unit_is_written_in_it(us: float, text: str) -> None:
    assert units.time(us) == text


@pytest.mark.parametrize(("count", "text"), [(999_960, "1.0 MB"), (999_940, "999.9 kB"), (999_990_000, "1.0 GB")])
def test_a_size_that_rounds_to_a_unit_is_written_in_it(count: int, text: str) -> None:
    assert units.size(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (856_313_856, "856.3 MB"), (66_792_480_768, "66.8 GB")],
)
def test_size_is_decimal_as_datasheets_are(count: int, text: str) -> None:
    assert units.size(count) == text


@pytest.mark.parametrize(
    ("gb_per_s", "text"), [(0, "0 GB/s"), (1009.2, "1.01 TB/s"), (941.4, "941 GB/s"), (4800, "4.80 TB/s")]
)
def test_rate(gb_per_s: float, text: str) -> None:
    assert units.rate(gb_per_s) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0, "0%"),
        (0.0004, "<0.1%"),
        (0.0005, "0.1%"),
        (0.21, "21%"),
        (0.2102, "21%"),
        (0.235, "23.5%"),
        (0.9996, "100%"),
        (1, "100%"),
        (-0.05, "-5%"),
    ],
)
def test_share(fraction: float, text: str) -> None:
    assert units.share(fraction) == text


@pytest.mark.parametrize(
    ("value", "text"), [(78.0, "78"), (2886, "2,886"), (2.5, "2.5"), (495_552, "495,552"), (1234.56, "1,234.6")]
)
def test_count(value: float, text: str) -> None:
    assert units.count(value) == text


@pytest.mark.parametrize(
    ("us", "text"), [(-0.04, "0.0 µs"), (-0.06, "-0.1 µs"), (-7.5, "-7.5 µs"), (-2000, "-2.00 ms")]
)
def test_a_negative_time_that_rounds_to_zero_has_no_sign(us: float, text: str) -> None:
    assert units.time(us) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 FLOP"), (999, "999 FLOP"), (19_360, "19.4 kFLOP"), (5.4e9, "5.4 GFLOP"), (999_960, "1.0 MFLOP")],
)
def test_operations(count: float, text: str) -> None:
    assert units.operations(count) == text


@pytest.mark.parametrize(
    ("elements", "text"), [(0, "0"), (512, "512"), (999_999, "999,999"), (1_000_000, "1.0 M"), (285_437_952, "285.4 M")]
)
def test_number(elements: int, text: str) -> None:
    assert units.number(elements) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([5], "5"), ([0, 1], "0–1"), ([0, 1, 2, 5, 7, 8], "0–2, 5, 7–8"), (list(range(78)), "0–77")],
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert units.ranges(numbers) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 calls"), (1, "1 call"), (1.5, "1.5 calls"), (1_170, "1,170 calls"), (0.075, "0.075 calls")],
)
def test_calls(count: float, text: str) -> None:
    assert units.calls(count) == text
