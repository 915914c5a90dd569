"""Interval arithmetic against hand-worked cases, and against counting on a short integer timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace import intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

END = 24
"""The timeline of the properties: the integers from 0 to END."""

Pairs = list[tuple[int, int]]

pairs: st.SearchStrategy[Pairs] = st.lists(
    st.tuples(st.integers(0, END), st.integers(0, END)).map(lambda pair: (min(pair), max(pair))), max_size=8
)


def arrays(rows: Pairs) -> tuple[Ints, Ints]:
    table = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def rows(starts: Ints, ends: Ints) -> Pairs:
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def ticks(rows: Pairs) -> set[int]:
    """The whole timeline, tick by tick: tick t stands for the time from t to t + 1."""
    return {tick for start, end in rows for tick in range(start, end)}


def runs(covered: set[int]) -> Pairs:
    """Neighbouring ticks joined to intervals."""
    starts = sorted(tick for tick in covered if tick - 1 not in covered)
    ends = sorted(tick + 1 for tick in covered if tick + 1 not in covered)
    return list(zip(starts, ends, strict=True))


@pytest.mark.parametrize(
    ("given_rows", "merged"),
    [
        ([], []),
        ([(3, 3)], []),
        ([(0, 10)], [(0, 10)]),
        ([(0, 10), (10, 20)], [(0, 20)]),
        ([(0, 10), (11, 20)], [(0, 10), (11, 20)]),
        ([(5, 6), (0, 10), (2, 12)], [(0, 12)]),
        ([(0, 100), (10, 20), (30, 40), (101, 102)], [(0, 100), (101, 102)]),
        ([(-5, -1), (-2, 3)], [(-5, 3)]),
    ],
)
def test_union_merges_what_overlaps_or_touches(given_rows: Pairs, merged: Pairs) -> None:
    assert rows(*intervals.union(*arrays(given_rows))) == merged


def test_time_that_two_kernels_share_counts_once() -> None:
    assert intervals.covered(*arrays([(0, 10), (4, 12), (20, 25)])) == 17


def test_gaps_are_what_lies_between() -> None:
    assert rows(*intervals.gaps(*arrays([(0, 10), (4, 12), (20, 25), (26, 30)]))) == [(12, 20), (25, 26)]


def test_difference_cuts_holes() -> None:
    found = intervals.difference(*arrays([(0, 10), (20, 30)]), *arrays([(2, 3), (8, 22), (40, 50)]))
    assert rows(*found) == [(0, 2), (3, 8), (22, 30)]


def test_time_covered_before_counts_up_to_each_time() -> None:
    starts, ends = arrays([(10, 20), (30, 40)])
    times = np.array([0, 10, 15, 20, 25, 35, 40, 99], dtype=np.int64)
    assert intervals.time_covered_before(times, starts, ends).tolist() == [0, 0, 5, 10, 10, 15, 20, 20]


def test_groups_far_apart_in_time_stay_apart() -> None:
    starts, ends = arrays([(0, 10), (1_000_000, 1_000_010), (5, 15)])
    group = np.array([0, 1, 1], dtype=np.int64)
    assert intervals.covered_by_group(starts, ends, group, 3).tolist() == [10, 20, 0]


@given(pairs)
def test_union_covers_the_same_ticks(given_rows: Pairs) -> None:
    assert rows(*intervals.union(*arrays(given_rows))) == runs(ticks(given_rows))


@given(pairs)
def test_covered_counts_ticks(given_rows: Pairs) -> None:
    assert intervals.covered(*arrays(given_rows)) == len(ticks(given_rows))


@given(pairs)
def test_gaps_are_the_uncovered_ticks_inside(given_rows: Pairs) -> None:
    covered = ticks(given_rows)
    inside = set(range(min(covered), max(covered))) if covered else set()
    assert rows(*intervals.gaps(*arrays(given_rows))) == runs(inside - covered)


@given(pairs, pairs)
def test_difference_leaves_the_other_ticks(first: Pairs, second: Pairs) -> None:
    assert rows(*intervals.difference(*arrays(first), *arrays(second))) == runs(ticks(first) - ticks(second))


@given(pairs, st.lists(st.integers(-2, END + 2), max_size=6))
def test_time_covered_before_counts_earlier_ticks(given_rows: Pairs, times: list[int]) -> None:
    merged = intervals.union(*arrays(given_rows))
    found = intervals.time_covered_before(np.array(times, dtype=np.int64), *merged)
    assert found.tolist() == [len({tick for tick in ticks(given_rows) if tick < time}) for time in times]


@given(st.lists(st.tuples(st.integers(0, END), st.integers(0, END), st.integers(0, 3)), max_size=10))
def test_covered_by_group_is_covered_of_each_group(drawn: list[tuple[int, int, int]]) -> None:
    given_rows = [(min(one, other), max(one, other)) for one, other, _ in drawn]
    group = [of for _, _, of in drawn]
    expected = [
        len(ticks([row for row, of in zip(given_rows, group, strict=True) if of == number])) for number in range(4)
    ]
    found = intervals.covered_by_group(*arrays(given_rows), np.array(group, dtype=np.int64), 4)
    assert found.tolist() == expected


def test_groups_far_apart_do_not_overflow() -> None:
    group = np.arange(40)
    starts = np.where(group == 0, 0, 1_700_000_000_000_000_000 + group)
    assert intervals.covered_by_group(starts, starts + 7, group, 40).tolist() == [7] * 40
