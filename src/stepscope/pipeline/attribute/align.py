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

_RUN = 4
"""Numbers in a run that votes for where a window lies."""
_PRIME = np.uint64(1_099_511_628_211)
_MOST_VOTES = 1 << 18
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


class Runs:
    """The runs of four numbers in a long sequence, sorted once, so that shorter sequences can be looked for in it."""

    def __init__(self, sequence: Ints) -> None:
        self._size = sequence.size
        hashes = _hashes(sequence)
        self._order = np.argsort(hashes, kind="stable")
        self._sorted = hashes[self._order]

    def window(self, first: Ints) -> slice:
        """Return the stretch that lines up with `first` best, with a margin on both sides; empty where none does.

        Equal runs vote for the offset between the sequences, the rarest first: what occurs once in a step tells more
        than what every layer repeats. Insertions spread the votes, so those of near offsets are added up. A sequence
        shorter than a run could lie anywhere, so it is not found.
        """
        margin = max(_LEAST_MARGIN, first.size // 4)
        if first.size < _RUN:
            return slice(0, 0)
        if self._size <= first.size + margin:
            return slice(0, self._size)
        offsets, weights = self._votes(_hashes(first))
        if not offsets.size:  # nothing alike, or everything
            return slice(0, first.size + margin)
        by_offset = np.argsort(offsets)
        offsets = offsets[by_offset]
        total = np.concatenate(([0.0], np.cumsum(weights[by_offset])))
        near = total[np.searchsorted(offsets, offsets + margin)] - total[:-1]
        low = int(offsets[np.argmax(near)])
        return slice(max(low - margin // 2, 0), min(low + margin + first.size + margin // 2, self._size))

    def _votes(self, hashes: NDArray[np.uint64]) -> tuple[Ints, NDArray[np.float64]]:
        """Return offsets at which equal runs lie, and the weight of each: every run of `first` has one vote in all."""
        starts = np.searchsorted(self._sorted, hashes)
        repeats = np.searchsorted(self._sorted, hashes, side="right") - starts
        by_rarity = np.argsort(repeats, kind="stable")
        here = by_rarity[np.cumsum(repeats[by_rarity]) <= _MOST_VOTES]
        starts, repeats = starts[here], repeats[here]
        within = np.arange(int(repeats.sum())) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        there = self._order[np.repeat(starts, repeats) + within]
        return there - np.repeat(here, repeats), 1.0 / np.repeat(repeats, repeats)


def _hashes(sequence: Ints) -> NDArray[np.uint64]:
    """Return a number for the run that begins at each position; a rare collision only costs a stray vote."""
    size = max(sequence.size - _RUN + 1, 0)
    hashes = np.zeros(size, dtype=np.uint64)
    for place in range(_RUN):
        hashes = hashes * _PRIME + sequence[place : place + size].astype(np.uint64)
    return hashes


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
