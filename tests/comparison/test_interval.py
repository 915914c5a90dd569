"""The interval of a difference of medians: against plain resampling, and on noise of which the truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.comparison.interval import difference
from stepscope.document import Verdict


def steps(*us: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(us, dtype=np.float64)


@pytest.mark.parametrize(("n", "m"), [(5, 5), (6, 9), (12, 7), (40, 31)])
def test_the_interval_is_that_of_resamples_drawn_one_by_one(n: int, m: int) -> None:
    noise = np.random.default_rng(7)
    before, after = noise.normal(1000, 20, n), noise.normal(1005, 30, m)
    drawn = np.median(noise.choice(after, (40_000, m)), axis=1) - np.median(noise.choice(before, (40_000, n)), axis=1)
    found = difference(before, after, steps=5).us
    assert found.expected == pytest.approx(np.median(after) - np.median(before))
    assert [found.low, found.high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]).tolist(), abs=2.5)


def test_five_steps_a_side_give_the_widest_difference_of_their_bulk() -> None:
    # P(a median of five draws is the least or greatest of the five) = 5.8% each: both at once are beyond the 95%
    found = difference(steps(10, 11, 12, 13, 14), steps(20, 21, 22, 23, 24), steps=5)
    assert found.verdict is Verdict.SLOWER
    assert found.us.expected == 10
    assert 6 <= found.us.low < 10 < found.us.high <= 14


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_fewer_than_five_steps_claim_nothing(count: int) -> None:
    before, after = steps(*range(count)), steps(*range(100, 100 + count))
    found = difference(before, after, steps=count)
    assert found.verdict is Verdict.TOO_FEW_STEPS
    assert (found.us.low, found.us.expected, found.us.high) == (100 - (count - 1), 100, 100 + (count - 1))


def test_one_side_with_too_few_is_enough_to_claim_nothing() -> None:
    assert difference(steps(*[1.0] * 50), steps(9, 9), steps=50).verdict is Verdict.TOO_FEW_STEPS


def test_steps_against_themselves_differ_by_nothing() -> None:
    same = np.random.default_rng(1).lognormal(9, 0.3, 25)
    found = difference(same, same, steps=25)
    assert found.us.expected == 0
    assert found.us.low < 0 < found.us.high
    assert found.verdict is Verdict.NO_DIFFERENCE


def test_equal_steps_have_an_interval_of_nothing() -> None:
    found = difference(steps(*[80.0] * 9), steps(*[80.0] * 9), steps=9)
    assert (found.us.low, found.us.high, found.verdict) == (0, 0, Verdict.NO_DIFFERENCE)


def test_noise_is_seldom_called_a_difference() -> None:
    noise = np.random.default_rng(3)
    verdicts = [difference(noise.normal(80, 4, 10), noise.normal(80, 4, 10), steps=10).verdict for _ in range(300)]
    assert verdicts.count(Verdict.NO_DIFFERENCE) >= 270


def test_a_real_slowdown_is_seldom_missed() -> None:
    noise = np.random.default_rng(4)
    verdicts = [difference(noise.normal(80, 1, 10), noise.normal(84, 1, 10), steps=10).verdict for _ in range(100)]
    assert verdicts.count(Verdict.SLOWER) >= 95


def test_the_same_steps_give_the_same_interval() -> None:
    before, after = np.random.default_rng(5).normal(50, 5, (2, 12))
    assert difference(before, after, steps=12) == difference(before, after, steps=12)


def test_many_steps_cost_no_more() -> None:
    found = difference(steps(*range(10**6)), steps(*range(10**4, 10**6 + 10**4)), steps=10**6)
    assert found.us.expected == 1e4
    # the standard error of the median of n uniform values is their range / (2 √n)
    assert found.us.high - found.us.low == pytest.approx(2 * 1.96 * np.hypot(500, 500), rel=0.05)
