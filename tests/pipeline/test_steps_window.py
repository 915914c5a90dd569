"""The steady window: which steps figures are taken from, and what is said of the others."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kineto import Kineto
from tests.stages import diagnosed, stepped

from stepscope.pipeline.steps.window import Window, steady


def window(times: list[float], sizes: list[float] | None = None) -> Window:
    size = np.array(sizes or [1] * len(times), dtype=np.float64)
    return steady(np.arange(len(times)), size, np.array(times).astype(np.int64))


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([9], [0]),
        ([9, 5], [0, 1]),
        ([99, 5, 5], [0, 1, 2]),
        ([99, 5, 5, 5], [1, 2, 3]),
        ([99, 5, 500, 5], [1, 2, 3]),  # three must remain
        ([99, 5, 500, 5, 5], [1, 3, 4]),
        ([99, 5, 500, 5, 600, 5], [1, 3, 5]),
        ([99, 5, 5, 500, 600, 5], [1, 2, 5]),
        ([99, 5, 500, 600, 5], [1, 2, 3, 4]),  # half of them are no outliers
    ],
)
def test_the_first_step_and_outliers_are_left_out_where_three_remain(times: list[float], expected: list[int]) -> None:
    assert list(window([time * 1e6 for time in times]).steady) == expected


@pytest.mark.parametrize(
    "milliseconds",
    [
        [101.7, 79.6, 83.6],  # eager-cast
        [95.7, 90.5, 92.9],
        [19.2, 17.5, 14.6, 19.9, 17.3, 16.1, 17.2],  # the host's period of graph-gather
        [80.4, 80.4, 80.4, 80.4, 119.0],  # next to no noise otherwise, but less than half as long again
        [10, 12, 14, 16, 18, 20, 22, 24, 40],  # noisy: 40 is within five deviations
    ],
)
def test_noise_is_no_outlier(milliseconds: list[float]) -> None:
    assert window([time * 1e6 for time in milliseconds]).outliers == ()


def test_what_an_outlier_cost() -> None:
    found = window([time * 1e6 for time in (50, 10, 10.1, 9.9, 10, 31)])
    assert (found.first, found.outliers, found.steady) == (0, (5,), (1, 2, 3, 4))
    # the five after the first: median 10, deviations 0, 0.1, 0.1, 0 and 21, their median 0.1: half as long again counts
    assert found.limit_ns == pytest.approx(15e6)
    assert found.outliers_cost_ns == pytest.approx(21e6)


def test_steps_of_another_size_are_no_outliers_but_other_work() -> None:
    found = window([9e6, 5e6, 5e6, 9e6, 5e6, 5e6], [1, 1, 1, 32, 1, 1])
    assert (found.other_size, found.outliers, found.steady) == ((3,), (), (1, 2, 4, 5))
    near = window([5e6] * 5, [100, 95, 100, 103, 109])
    assert near.other_size == ()
    mixed = window([5e6, 5e6, 6e6, 7e6], [1, 1, 2, 4])
    assert (mixed.steady, mixed.other_size, mixed.mixed) == ((1, 2, 3), (), (1, 4))


def decoding(durations: list[float], batches: list[int] | None = None, *, phase: str = "DECODE") -> Kineto:
    """Steps of one kernel each, so long apart."""
    trace = Kineto()
    at = 100.0
    for number, duration in enumerate(durations):
        batch = batches[number] if batches else 1
        trace.annotation(f"step[{phase} bs={batch}]", at, 10)
        trace.call("k", at=at + 1, duration=duration - 5)
        at += duration
    return trace


def messages(trace: Kineto) -> dict[str, tuple[int, str]]:
    return {w.code: (w.count, w.message) for w in diagnosed(trace).traces[0].warnings}


def test_what_is_left_out_is_said() -> None:
    trace = decoding([900, 100, 100, 450, 100, 100, 700, 100], [1, 1, 1, 1, 1, 1, 8, 1])
    row = diagnosed(trace).steps[0]
    assert (row.count, row.steady) == (8, 5)
    assert (row.duration_us.min, row.duration_us.max) == (100, 100)
    count, message = messages(trace)["steps-left-out"]
    assert count == 3
    assert "decode: the first, 1 of another size, 1 longer than 0.15 ms, which cost 350 µs beyond the median" in message


def test_leaving_out_the_first_alone_is_no_warning() -> None:
    told = {w.code: w.is_note for w in diagnosed(decoding([900, 100, 100, 100])).traces[0].warnings}
    assert told["steps-left-out"]
    told = {w.code: w.is_note for w in diagnosed(decoding([900, 100, 100, 450, 100])).traces[0].warnings}
    assert not told["steps-left-out"]


def test_nothing_is_said_where_nothing_is_left_out() -> None:
    assert not {"steps-left-out", "mixed-sizes"} & set(messages(decoding([100, 100, 100])))


def test_sizes_that_cannot_be_told_apart_are_said() -> None:
    count, message = messages(decoding([100, 100, 110], [1, 2, 4]))["mixed-sizes"]
    assert (count, "decode: 1 to 4" in message) == (1, True)


@pytest.mark.parametrize(("steps", "few"), [(1, True), (2, True), (3, False)])
def test_one_or_two_steps_are_used_whole(steps: int, *, few: bool) -> None:
    trace = decoding([100] * steps)
    assert diagnosed(trace).steps[0].steady == steps
    assert ("few-steps" in messages(trace)) is few


def test_figures_are_taken_from_the_same_steps_everywhere() -> None:
    """A kernel runs twice in the outlier: neither the breakdown nor the steps count it."""
    trace = decoding([900, 100, 100, 450, 100, 100])
    trace.call("k", at=100 + 900 + 200 + 20, duration=1)  # in the fourth
    diagnosis = diagnosed(trace)
    assert [row.calls_per_step for row in diagnosis.breakdown] == [1]
    assert diagnosis.steps[0].kernels_per_step == 1
    _, steps = stepped(trace)
    assert steps.steady_phases() == {"decode": [1, 2, 4, 5]}
    assert steps.kernels_per_step().tolist() == [1, 1, 1, 2, 1, 1]


def test_the_last_step_is_judged_by_its_gpu_span() -> None:
    _, steps = stepped(decoding([100, 100, 100, 100, 100, 800]))
    assert steps.windows[next(iter(steps.windows))].outliers == (5,)


def test_idle_time_is_of_the_steps_that_have_a_duration() -> None:
    """Every other step is long: one step more or less in a median would change a difference of two by 100 µs."""
    trace, at = Kineto(), 100.0
    for number in range(8):
        trace.annotation("step[DECODE bs=1]", at - 5, 40)
        at = trace.call("k", at=at, duration=300 if number % 2 else 100) + 44  # and 6 until the next one starts
    (row,) = diagnosed(trace).steps
    # without the first: 350, 150, 350, 150, 350 and 150 to the next one, and the last, of 300 µs, without
    assert row.steady == 7
    assert row.duration_us.median == pytest.approx(250)
    assert row.gpu_busy_us == pytest.approx(200)
    assert row.gpu_idle_us == pytest.approx(50)
