"""The least time of work, worked out by hand."""

from __future__ import annotations

import pytest

from stepscope.hardware import Gpu, find_gpu
from stepscope.pipeline.cost import Bound, Ceilings, Work

H200 = Ceilings.of(find_gpu("h200", None))


def test_measured_ceilings_come_before_the_datasheets() -> None:
    """4,300 of 4,800 GB/s and 790 of 989 TFLOPS were measured; FP8 has only its datasheet's."""
    assert H200 is not None
    assert (H200.gb_per_s, H200.tflops["BFloat16"]) == (4300, 790)


@pytest.mark.parametrize(
    ("work", "us", "bound"),
    [
        (Work(4.3e9, 1e9), 1000, Bound.MEMORY),
        (Work(4.3e6, 790e9), 1000, Bound.COMPUTE),
        (Work(0, 790e9, "Float"), 1000, Bound.COMPUTE),  # a type without a rate of its own multiplies as BF16
        (Work(0, 0), 0, Bound.MEMORY),
    ],
)
def test_the_slower_of_memory_and_compute_bounds_the_work(work: Work, us: float, bound: Bound) -> None:
    assert H200 is not None
    least_us, limit = H200.floor(work)
    assert least_us == pytest.approx(us)
    assert limit is bound


def test_a_gpu_without_figures_has_no_ceilings() -> None:
    assert Ceilings.of(None) is None
    assert Ceilings.of(Gpu("Another", ["Another"])) is None


def test_works_add_up() -> None:
    assert Work(1, 0, "Float", 1) + Work(2, 3, "Float8_e4m3fn") == Work(3, 3, "Float8_e4m3fn", 1)
