"""Which file of BEFORE is compared with which of AFTER: two traces, or the ranks of two folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.pipeline.load import find_traces

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.pipeline.reader import Reader


def pair_files(before: str | Path, after: str | Path, reader: Reader) -> list[tuple[str, str]]:
    """Return the pairs: of the same rank where every trace recorded another one, else in order of their names.

    Raises:
        UsageError: a path does not exist, or the two do not hold the same ranks, or as many traces.
        NotATraceError: a folder holds no trace.
    """
    left, right = find_traces(before), find_traces(after)
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]
    first, second = ([(trace.path, trace.rank) for trace in reader.each([path])] for path in (before, after))
    by_rank = [{rank: path for path, rank in side if rank is not None} for side in (first, second)]
    if all(len(known) == len(side) for known, side in zip(by_rank, (first, second), strict=True)):
        if by_rank[0].keys() != by_rank[1].keys():
            lonely = ", ".join(map(str, sorted(by_rank[0].keys() ^ by_rank[1].keys())))
            raise UsageError(f"{before} and {after} hold different ranks: only one of them has {lonely}")
        return [(by_rank[0][rank], by_rank[1][rank]) for rank in sorted(by_rank[0])]
    if len(first) != len(second):
        numbers = f"{len(first)} and {len(second)}"
        raise UsageError(f"{before} and {after} hold different numbers of traces, {numbers}, not all of known rank")
    return [(path, other) for (path, _), (other, _) in zip(first, second, strict=True)]
