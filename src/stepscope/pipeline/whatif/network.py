"""When GPU work starts, if each piece starts as soon as everything that it waits for lets it.

The times are sums and maxima. On one stream a piece starts at max(what its launch lets it, start of the piece before +
advance), which a cumulative maximum computes for many pieces at once. Only where streams wait for each other, and where
the host waits for a stream, are pieces looked at one by one, in the order of the recording.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from stepscope.pipeline.whatif.host import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.whatif.device import Device, Edges
    from stepscope.pipeline.whatif.host import Wait

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Work:
    """What each piece of GPU work waits for, and how long it lasts; shapes [rows] unless told, times in ns."""

    duration: Ints
    advance: Ints
    """From the start of the work before it on the stream to the earliest start; nothing for a stream's first."""
    ready: Ints
    """When its launch lets it start, if no wait of the host returns earlier or later; `NEVER`: nothing holds it."""
    follows: Ints
    """Number of the wait on whose return the launch's clock depends, from 1; 0: none."""
    edges: Edges
    edge_gap: Ints
    """Shape [edges]: from the end of the work of another stream to the earliest start."""
    waits: Sequence[Wait]
    """In order of their ends, as the host would make them without GPU work of another duration."""


def starts(device: Device, work: Work) -> tuple[Ints, Ints]:
    """Return when each piece starts, and when its launch let it start (`NEVER`: nothing held it); shapes [rows]."""
    order = device.order
    if not order.size:
        return work.ready, work.ready
    offset = np.cumsum(work.advance[order])
    held = work.ready[order] != NEVER
    level = np.where(held, work.ready[order] - offset, NEVER)
    triggers = np.maximum.accumulate(np.array([max(wait.targets) for wait in work.waits], dtype=np.int64))
    # a launch of another thread may come after a wait that is not yet over when its work starts
    follows = np.minimum(work.follows, np.searchsorted(triggers, np.arange(order.size)))[order]
    follows = np.where(held, follows, 0)[np.maximum.accumulate(np.where(held, np.arange(order.size), 0))]
    position = np.empty_like(order)
    position[order] = np.arange(order.size)

    looked_at = np.zeros(order.shape, dtype=np.bool_)
    targets = np.array([target for wait in work.waits for target in wait.targets], dtype=np.int64)
    looked_at[position[np.concatenate((work.edges.before, work.edges.after, targets))]] = True
    looked_at[:-1] |= device.opens[1:] | (follows[1:] != follows[:-1])
    looked_at[-1] = True
    ended, earlier = _walk(work, _Runs.of(device, level, offset, follows, looked_at), triggers)

    level = np.where(held, level - earlier[follows], NEVER)
    ready = np.where(held, level + offset, NEVER)
    after = position[work.edges.after]
    np.maximum.at(level, after, ended[work.edges.before] + work.edge_gap - offset[after])
    opens = np.flatnonzero(device.opens)
    for begin, end in zip(opens, [*opens[1:], order.size], strict=True):
        np.maximum.accumulate(level[begin:end], out=level[begin:end])
    start = np.empty_like(order)
    start[order], ready[order] = level + offset, ready.copy()
    return start, ready


@dataclass(frozen=True, slots=True)
class _Runs:
    """Work of one stream up to a piece that is looked at, in the order of those pieces."""

    stream: Sequence[int]
    last: Sequence[int]
    """The row that is looked at."""
    offset: Sequence[int]
    """Its offset."""
    level: Sequence[int]
    """The highest level in the run."""
    follows: Sequence[int]

    @classmethod
    def of(cls, device: Device, level: Ints, offset: Ints, follows: Ints, looked_at: Bools) -> _Runs:
        ends = np.flatnonzero(looked_at)
        highest = np.maximum.reduceat(level, np.concatenate(([0], ends[:-1] + 1)))
        in_order = np.argsort(device.order[ends])
        ends, highest = ends[in_order], highest[in_order]
        rows = device.order[ends]
        columns = (device.stream[rows], rows, offset[ends], highest, follows[ends])
        return cls(*(column.tolist() for column in columns))


def _walk(work: Work, runs: _Runs, triggers: Ints) -> tuple[Ints, Ints]:
    """Go through the pieces that are looked at.

    Returns:
        When they end, shape [rows]; and by how much each wait returns earlier, shape [waits + 1], 0 for none.
    """
    ended: dict[int, int] = {}
    earlier = [0] * (len(work.waits) + 1)
    pairs = zip(work.edges.after.tolist(), work.edges.before.tolist(), work.edge_gap.tolist(), strict=True)
    edges_of = {after: [edge[1:] for edge in edges] for after, edges in groupby(pairs, key=lambda pair: pair[0])}
    waits_of = {
        trigger: list(waits) for trigger, waits in groupby(range(len(work.waits)), key=triggers.tolist().__getitem__)
    }
    reached: dict[int, int] = {}
    duration = work.duration
    for stream, row, offset, level, follows in zip(
        runs.stream, runs.last, runs.offset, runs.level, runs.follows, strict=True
    ):
        reach = max(reached.get(stream, NEVER), level - earlier[follows])
        for before, gap in edges_of.get(row, ()):
            reach = max(reach, ended[before] + gap - offset)
        reached[stream] = reach
        ended[row] = reach + offset + int(duration[row])
        for number in waits_of.get(row, ()):
            wait = work.waits[number]
            came_earlier = earlier[wait.earlier]
            returned = wait.start - came_earlier
            if wait.end > wait.start:  # one that is gone returns at once
                returned = max(returned, *(ended[target] for target in wait.targets)) + wait.delay
            earlier[number + 1] = wait.end - returned
    rows = np.zeros(duration.shape, dtype=np.int64)
    rows[list(ended)] = list(ended.values())
    return rows, np.array(earlier, dtype=np.int64)
