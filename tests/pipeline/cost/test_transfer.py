"""Bytes that a cast must move, and the rates that follow from them."""

from __future__ import annotations

import pytest

from stepscope.hardware import Gpu, find_gpu
from stepscope.pipeline.cost import Transfer

POOL = 495_552 * 576


@pytest.mark.parametrize(
    ("source", "target", "bytes_an_element"),
    [
        ("Float8_e4m3fn", "BFloat16", 3),
        ("Float8_e5m2", "Half", 3),
        ("BFloat16", "BFloat16", 4),
        ("BFloat16", "Float", 6),
        ("Float", "Double", 12),
        ("Long", "Int", 12),
        ("Bool", "Byte", 2),
    ],
)
def test_a_cast_reads_and_writes_every_element_once(source: str, target: str, bytes_an_element: int) -> None:
    assert Transfer(1000, source, target).bytes == 1000 * bytes_an_element


def test_the_pools_cast_in_bytes_and_rate() -> None:
    cast = Transfer(POOL, "Float8_e4m3fn", "BFloat16")
    assert cast.bytes == 856_313_856
    assert cast.achieved_gb_per_s(848.5) == pytest.approx(1009.2, abs=0.1)


def test_the_floor_is_at_the_measured_rate_where_there_is_one() -> None:
    live = Transfer(1024 * 576, "Float8_e4m3fn", "BFloat16")  # 1,769,472 B
    h200, rtx = find_gpu("h200", None), find_gpu("rtx-pro-6000", None)
    assert live.floor_us(h200) == pytest.approx(0.4115, abs=0.0001)  # at 4,300 GB/s, not 4,800
    assert live.floor_us(rtx) == pytest.approx(0.9874, abs=0.0001)  # at 1,792 GB/s


def test_no_rate_gives_no_floor() -> None:
    cast = Transfer(1024, "Float8_e4m3fn", "BFloat16")
    assert cast.floor_us(None) is None
    assert cast.floor_us(Gpu("unknown", [])) is None


def test_an_unknown_type_has_no_size() -> None:
    with pytest.raises(KeyError):
        _ = Transfer(1, "Quaternion", "Float").bytes
