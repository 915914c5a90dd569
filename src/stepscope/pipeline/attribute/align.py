"""Two sequences of numbers lined up: their longest common subsequence, and where in a long one to look for it.

The subsequence is found bit-parallel (Hyyrö 2004): a row of the dynamic programme is one large integer, so that a step
of a few thousand kernels takes some ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_GRAM = 4
"""Length of the runs that vote for where a window lies."""
_MOST_VOTES = 1 << 20
_LEAST_MARGIN = 64


def align(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Return the positions in both sequences of a longest common subsequence.

    Of several it is one within the shortest stretch of `second` that ends first, so that what lies around the stretch
    takes no part.
    """
    _, found = _common(first, second)
    end = int(found[-1]) + 1 if found.size else 0
    back_first, back_second = _common(first[::-1], second[:end][::-1])
    return first.size - 1 - back_first[::-1], end - 1 - back_second[::-1]


def window(first: Ints, second: Ints) -> slice:
    """Return the stretch of `second` that lines up with `first` best, with a margin on both sides.

    Runs of four equal numbers vote for the offset between the sequences, the rarest runs first: what occurs once in a
    step tells more than what every layer repeats. Insertions spread the votes, so those of near offsets are added up.
    """
    margin = max(_LEAST_MARGIN, first.size // 4)
    if second.size <= first.size + margin or first.size < _GRAM:
        return slice(0, second.size)
    offsets, weights = _votes(*_grams(first, second))
    if not offsets.size:  # nothing alike, or everything
        return slice(0, first.size + margin)
    shift = first.size
    votes = np.bincount(offsets + shift, weights, minlength=first.size + second.size + margin)
    total = np.concatenate(([0.0], np.cumsum(votes)))
    near = total[margin:] - total[:-margin]
    low = int(np.argmax(near)) - shift
    return slice(max(low - margin // 2, 0), min(low + margin + first.size + margin // 2, second.size))


def _common(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Return the positions of a longest common subsequence, in `second` as early as possible."""
    size = second.size
    every = (1 << size) - 1
    holds = {
        int(code): int.from_bytes(np.packbits(second == code, bitorder="little").tobytes(), "little")
        for code in np.intersect1d(first, second)
    }
    row, rows = every, [every]
    for code in first.tolist():  # bit j of a row is 0 where one more number of second lengthens the subsequence
        matched = row & holds.get(code, 0)
        row = ((row + matched) | (row - matched)) & every
        rows.append(row)
    pairs: list[tuple[int, int]] = []
    i, j = first.size, size
    while i and j:
        if rows[i] >> (j - 1) & 1:
            j -= 1
            continue
        i -= 1
        if rows[i] >> (j - 1) & 1:
            j -= 1
            pairs.append((i, j))
    found = np.array(pairs[::-1], dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _grams(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Return numbers for the runs that begin at each position, equal where the runs are."""
    runs = np.concatenate([np.lib.stride_tricks.sliding_window_view(part, _GRAM) for part in (first, second)])
    codes = np.zeros(len(runs), dtype=np.int64)
    for column in range(_GRAM):
        _, own = np.unique(runs[:, column], return_inverse=True)
        _, codes = np.unique(codes * (own.max() + 1) + own, return_inverse=True)
    split = first.size - _GRAM + 1
    return codes[:split], codes[split:]


def _votes(first: Ints, second: Ints) -> tuple[Ints, NDArray[np.float64]]:
    """Return offsets at which equal runs lie, and the weight of each: every run has one vote in all."""
    count = int(max(first.max(), second.max())) + 1
    in_first, in_second = np.bincount(first, minlength=count), np.bincount(second, minlength=count)
    pairs = in_first * in_second
    by_rarity = np.argsort(pairs, kind="stable")
    affordable = np.zeros(count, dtype=np.bool_)
    affordable[by_rarity] = np.cumsum(pairs[by_rarity]) <= _MOST_VOTES
    places = np.flatnonzero(affordable[first])
    order = np.argsort(second, kind="stable")
    starts = np.searchsorted(second[order], first[places])
    repeats = in_second[first[places]]
    within = np.arange(int(repeats.sum())) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    there = order[np.repeat(starts, repeats) + within]
    here = np.repeat(places, repeats)
    return there - here, 1.0 / pairs[first[here]]
