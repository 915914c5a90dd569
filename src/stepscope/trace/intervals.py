"""Arithmetic on half-open time intervals, as arrays of starts and ends.

Time that several kernels share counts once: every total in stepscope is a union on one timeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def union(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Merge intervals into the disjoint, sorted intervals that cover the same time.

    Args:
        starts: shape [n], in any order.
        ends: shape [n], `ends >= starts`.

    Returns:
        Starts and ends of the merged intervals; intervals that touch are merged, empty ones vanish.
    """
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if starts.size == 0:
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    frontier = np.maximum.accumulate(ends)
    opens = np.concatenate(([True], starts[1:] > frontier[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return starts[opens], frontier[closes]


def covered(starts: Ints, ends: Ints) -> int:
    """Return the time that at least one interval covers."""
    merged_starts, merged_ends = union(starts, ends)
    return int((merged_ends - merged_starts).sum())


def covered_by_group(starts: Ints, ends: Ints, group: Ints, count: int) -> Ints:
    """Return, for each of `count` groups of intervals, the time that at least one interval of the group covers.

    Args:
        starts: shape [n].
        ends: shape [n].
        group: shape [n], each in [0, count).
        count: number of groups.
    """
    if starts.size == 0:
        return np.zeros(count, dtype=np.int64)
    times, rank = np.unique(np.concatenate((starts, ends)), return_inverse=True)
    offset = group * times.size  # groups are laid one after another by rank, so that one union serves all
    merged_starts, merged_ends = union(rank[: starts.size] + offset, rank[starts.size :] + offset)
    total = np.zeros(count, dtype=np.int64)
    lengths = times[merged_ends % times.size] - times[merged_starts % times.size]
    np.add.at(total, merged_starts // times.size, lengths)
    return total


def gaps(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the uncovered intervals between the first start and the last end."""
    merged_starts, merged_ends = union(starts, ends)
    return merged_ends[:-1], merged_starts[1:]


def time_covered_before(times: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return, for each time, how much of the time before it the intervals cover.

    Args:
        times: shape [m].
        starts: shape [n], sorted and disjoint with `ends`, as `union` returns them.
        ends: shape [n].
    """
    if starts.size == 0:
        return np.zeros_like(times)
    total_before = np.concatenate(([0], np.cumsum(ends - starts)))
    index = np.searchsorted(starts, times, side="right")
    inside = np.where(index > 0, np.maximum(ends[index - 1] - times, 0), 0)
    covered_before: Ints = total_before[index] - inside
    return covered_before


def difference(starts: Ints, ends: Ints, other_starts: Ints, other_ends: Ints) -> tuple[Ints, Ints]:
    """Return the time covered by the first set of intervals and not by the second, merged."""
    starts, ends = union(starts, ends)
    if starts.size == 0:
        return starts, ends
    other_starts, other_ends = union(other_starts, other_ends)
    cuts = np.concatenate((starts, ends, other_starts, other_ends))
    cuts.sort()  # equal cuts make empty intervals, which `union` drops; np.unique is ten times slower here
    low, high = cuts[:-1], cuts[1:]
    in_first = _contains(starts, ends, low)
    in_second = _contains(other_starts, other_ends, low)
    keep = in_first & ~in_second
    return union(low[keep], high[keep])


def _contains(starts: Ints, ends: Ints, times: Ints) -> NDArray[np.bool_]:
    """Tell for each time whether one of the disjoint, sorted intervals holds it."""
    if starts.size == 0:
        return np.zeros(times.shape, dtype=np.bool_)
    index = np.searchsorted(starts, times, side="right")
    held: NDArray[np.bool_] = (index > 0) & (times < ends[np.maximum(index - 1, 0)])
    return held
