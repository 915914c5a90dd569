"""What repeats in a sequence of kernels: the steps of a recording, and the layers within one pass.

Layers repeat as steps do. What sets a step apart is that it holds both kernels that run once in it (its *marks*: an
embedding, a sampler, the copy of the tokens) and a shorter repeat (its layers). The stretches of kernels from one run
of the marks to the next are therefore taken for steps only where

- the marks run at least three times, evenly spaced, up to the end of the recording;
- the stretches run the same kernels;
- each holds a repeat of its own, or is longer than any layer;
- hardly any other kernel runs, as the embedding and the sampler do before and after the layers of a single step.

Of several such stretches the longest are the steps. In doubt there are none.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

MIN_REPEATS = 3
"""Two like stretches may be chance."""
EVEN = 0.1
"""The distance between two marks may differ by this share from the median distance: kernels run only at times."""
MOST = 0.9
"""So many distances must be even, and so many stretches alike."""
ALIKE = 0.9
"""So many of a stretch's kernels must be those of the typical stretch, by name; before the first mark, by grid too."""
COVERED = 0.5
"""So much of the recording must lie between marks: before them a prefill may run."""
INNER = 0.5
"""So much of a stretch must be a repeat of its own."""
NO_LAYER = 1000
"""No layer launches so many kernels without repeating itself; iterations of a training do."""
STRANGERS = 1
"""So many kernels, by name, may run in some stretches only."""
FINER = 4
"""A stretch that holds up to so many shorter ones with more marks is that many steps: what runs in every other step is
no mark.
"""
MOST_TRIED = 16
"""Sequences that are examined before there are said to be no steps."""


@dataclass(frozen=True, slots=True)
class _Marks:
    """Kernels that run equally often, each evenly spaced."""

    positions: tuple[Ints, ...]
    """For each mark, where it runs; shape [count]."""

    @property
    def count(self) -> int:
        return int(self.positions[0].size)


def find_repeats(names: Ints, symbols: Ints, since_last: Ints) -> tuple[Ints, int] | None:
    """Return where each step begins in a sequence of kernels, and where the last one ends; None where none repeats.

    Only whole steps count; what runs before and after them is outside.

    Args:
        names: shape [n], the kernel's name as a number, in order of launch.
        symbols: shape [n], name and grid as a number.
        since_last: shape [n], time since the kernel before was launched. A step begins after the longest pause.
    """
    best: _Marks | None = None
    for marks in islice(_evenly_spaced(symbols), MOST_TRIED):
        if best is not None and marks.count > FINER * best.count + 1:
            break
        better = best is None or len(marks.positions) > len(best.positions)
        if better and _is_step(marks, names, symbols):
            best = marks
    return None if best is None else _whole_steps(best, symbols, since_last)


def holds_repeat(symbols: Ints) -> bool:
    """Whether a stretch of kernels is, for the most part, a repeat: the layers of one pass.

    Args:
        symbols: shape [n], name and grid as a number, in order.
    """
    for marks in islice(_evenly_spaced(symbols, covered=0.0, to_end=False), MOST_TRIED):
        position = marks.positions[0]
        inside = symbols[position[0] : position[-1]]
        if inside.size >= INNER * symbols.size and _alike(inside, position - position[0])[0]:
            return True
    return False


def _evenly_spaced(symbols: Ints, *, covered: float = COVERED, to_end: bool = True) -> Iterator[_Marks]:
    """Yield the marks, rarest first."""
    order = np.argsort(symbols, kind="stable")
    _, begin, count = np.unique(symbols[order], return_index=True, return_counts=True)
    begin, count = begin[count >= MIN_REPEATS], count[count >= MIN_REPEATS]
    first, last = order[begin], order[begin + count - 1]
    distance, even = _spacing(order, begin, count)
    chosen = (even >= MOST) & (distance > 1) & (first <= (1 - covered) * symbols.size)
    if to_end:
        chosen &= symbols.size - last <= (1 + EVEN) * distance
    begin, first, count = begin[chosen], first[chosen], count[chosen]
    for often in np.unique(count):
        alike = np.flatnonzero(count == often)
        alike = alike[np.argsort(first[alike])]
        yield _Marks(tuple(order[at : at + often] for at in begin[alike].tolist()))


def _spacing(order: Ints, begin: Ints, count: Ints) -> tuple[Floats, Floats]:
    """Return the median distance between the positions of each symbol, and the share that differs little from it.

    Args:
        order: shape [n], the positions of all symbols, symbol by symbol, ascending.
        begin: shape [symbols], where those of a symbol begin.
        count: shape [symbols], how many it has; two at least.
    """
    if not count.size:
        return np.zeros(0), np.zeros(0)
    size = count - 1
    start = np.cumsum(size) - size
    symbol = np.repeat(np.arange(count.size), size)
    here = np.arange(size.sum()) - start[symbol] + begin[symbol]
    distance = order[here + 1] - order[here]
    ordered = distance[np.lexsort((distance, symbol))]
    median = (ordered[start + (size - 1) // 2] + ordered[start + size // 2]) / 2
    is_even = np.abs(distance - median[symbol]) <= EVEN * median[symbol]
    return median, np.add.reduceat(is_even.astype(np.int64), start) / size


def _is_step(marks: _Marks, names: Ints, symbols: Ints) -> bool:
    begin = marks.positions[0]
    alike, strangers = _alike(names[begin[0] :], begin - begin[0])
    typical = int(np.median(np.diff(begin)))
    if begin[0] < typical / 2:  # the end of a step, or what runs once before a single step's layers
        strangers |= set(names[: begin[0]].tolist()) - set(names[begin[0] :].tolist())
    if not alike or len(strangers) > STRANGERS:
        return False
    middle = (begin.size - 1) // 2
    return typical >= NO_LAYER or holds_repeat(symbols[begin[middle] : begin[middle + 1]])


def _alike(names: Ints, begin: Ints) -> tuple[bool, set[int]]:
    """Tell whether most stretches run the same kernels, and which run in few of them.

    Args:
        names: shape [n], beginning with the first stretch.
        begin: shape [stretches], where each begins; the last may be cut off, and is judged by its strangers only.
    """
    whole = begin.size - 1  # the last may also begin where the names end
    stretch = np.searchsorted(begin, np.arange(names.size), side="right") - 1
    calls = pl.DataFrame({"stretch": stretch, "name": names}).group_by("stretch", "name").len("calls")
    in_whole = pl.col("stretch") < whole
    usual = calls.filter(in_whole).group_by("name").agg(pl.col("calls").median().alias("usual"), pl.len().alias("of"))
    usual = usual.filter(2 * pl.col("of") >= whole)
    both = pl.min_horizontal("calls", "usual")
    shared = calls.filter(in_whole).join(usual, on="name").group_by("stretch").agg(both.sum().alias("kernels"))
    common = np.zeros(whole)
    common[shared["stretch"].to_numpy()] = shared["kernels"].to_numpy()
    expected = usual.select(pl.col("usual").cast(pl.Float64).sum())["usual"].to_numpy()
    enough = common >= ALIKE * np.maximum(np.diff(begin), expected)
    return bool(enough.mean() >= MOST), set(calls["name"].to_list()) - set(usual["name"].to_list())


def _whole_steps(marks: _Marks, symbols: Ints, since_last: Ints) -> tuple[Ints, int]:
    """Choose where in the sequence a step begins, and keep the whole steps."""
    size, first = symbols.size, marks.positions[0][0]
    lengths = np.diff(marks.positions[0])
    length = int(np.median(lengths))
    starts_alike = _share(symbols[:first], symbols[first:]) >= ALIKE
    if (lengths == length).all() and size % length == 0 and starts_alike:  # whole steps were recorded, and nothing else
        return np.arange(0, size, length), size
    places = [position + after for position in marks.positions for after in (0, 1)]
    begin = max(places, key=lambda place: float(np.median(since_last[place[(place > 0) & (place < size)]])))
    begin = begin[begin < size]
    if _is_whole(begin[0], length) and _share(symbols[: begin[0]], symbols[begin[0] :]) >= ALIKE:
        begin = np.concatenate(([0], begin))
    if _is_whole(size - begin[-1], length):
        return begin, size
    return begin[:-1], int(begin[-1])


def _is_whole(size: int, length: int) -> bool:
    return abs(size - length) <= EVEN * length


def _share(some: Ints, others: Ints) -> float:
    """Return which share of some kernels also run among the others."""
    return float(np.isin(some, others).mean()) if some.size else 1.0
