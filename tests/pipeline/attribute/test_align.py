"""Two sequences lined up: against the textbook's dynamic programme, and with insertions and deletions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.pipeline.attribute.align import Runs, align

NUMBERS = st.lists(st.integers(0, 5), max_size=40)
LAYERS = 60


def longest(first: list[int], second: list[int]) -> int:
    """Return the length of a longest common subsequence, as the textbook finds it."""
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            table[i + 1][j + 1] = table[i][j] + 1 if one == other else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def model_step() -> np.ndarray:
    """Return a step of equal layers with a few kernels of its own at both ends."""
    layer = [1, 2, 3, 1, 4, 5, 6, 1, 7, 2, 8]
    return np.array([20, 21, *layer * LAYERS, 22, 23, 24], dtype=np.int64)


@given(NUMBERS, NUMBERS)
def test_as_many_pairs_as_the_textbook_finds_equal_and_in_order(first: list[int], second: list[int]) -> None:
    here, there = align(np.array(first, dtype=np.int64), np.array(second, dtype=np.int64))
    assert len(here) == len(there) == longest(first, second)
    assert all(first[i] == second[j] for i, j in zip(here, there, strict=True))
    assert all(low < high for positions in (here, there) for low, high in pairwise(positions.tolist()))


@given(st.data())
def test_insertions_and_deletions_leave_everything_else_lined_up(data: st.DataObject) -> None:
    first = np.array(data.draw(st.lists(st.integers(0, 1000), unique=True, min_size=1, max_size=60)), dtype=np.int64)
    kept = [i for i in range(first.size) if data.draw(st.booleans())]
    second, places = [], []
    for i in kept:
        second += [5000] * data.draw(st.integers(0, 3))
        places.append(len(second))
        second.append(int(first[i]))
    here, there = align(first, np.array(second, dtype=np.int64))
    assert here.tolist() == kept
    assert there.tolist() == places


@given(st.sets(st.integers(0, 600), max_size=30), st.sets(st.integers(0, 600), max_size=30), st.integers(0, 3))
def test_the_pass_is_found_among_others_whatever_is_inserted_or_missing(
    removed: set[int], inserted: set[int], passes_before: int
) -> None:
    step = model_step()
    other = np.where(step < 20, step + 100, step)  # another batch size: other grids in every layer
    changed = np.insert(np.delete(step, sorted(removed)), sorted(inserted), 99)
    second = np.concatenate([*[other] * passes_before, changed, other, other])
    near = Runs(second).window(step)
    here, there = align(step, second[near])
    begin = other.size * passes_before
    assert near.start <= begin
    assert begin + changed.size <= near.stop
    in_pass = (there + near.start >= begin) & (there + near.start < begin + changed.size)
    assert in_pass.sum() >= step.size - len(removed)
    assert here.size <= step.size


def test_what_lies_around_the_stretch_takes_no_part() -> None:
    here, there = align(np.array([1, 2, 3, 1]), np.array([1, 3, 1, 2, 3, 1, 2, 1]))
    assert here.tolist() == [0, 1, 2, 3]
    assert there.tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("second", [[], [9, 9, 9, 9, 9], [9] * 5000])
def test_nothing_in_common_is_no_pair(second: list[int]) -> None:
    first, other = model_step(), np.array(second, dtype=np.int64)
    here, there = align(first, other[Runs(other).window(first)])
    assert (here.size, there.size) == (0, 0)


def test_thousands_of_equal_numbers_line_up() -> None:
    first, second = np.ones(3000, dtype=np.int64), np.ones(9000, dtype=np.int64)
    here, _ = align(first, second[Runs(second).window(first)])
    assert here.size == 3000


def test_a_few_numbers_could_lie_anywhere() -> None:
    assert Runs(model_step()).window(np.array([1, 2, 3])) == slice(0, 0)
