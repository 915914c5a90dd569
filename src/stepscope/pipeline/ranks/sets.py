"""Which traces are the ranks of one run."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from stepscope.pipeline.ranks.calls import RankCalls

_NUMBER = re.compile(r"\d+")


def sets_of(ranks: Sequence[RankCalls]) -> list[list[RankCalls]]:
    """Return the traces by run, each in order of its ranks; what is no rank among others stands alone.

    All traces are of one run if no two are of the same rank. Else those of each folder are, or those whose files are
    called the same but for the numbers, as servers write one file for each phase and rank.
    """
    return _split(ranks, (_folder, _name))


def _split(ranks: Sequence[RankCalls], keys: Sequence[Callable[[RankCalls], Hashable]]) -> list[list[RankCalls]]:
    if len({each.rank for each in ranks if each.rank >= 0}) == len(ranks):
        return [sorted(ranks, key=lambda each: each.rank)]
    if not keys:
        return [[each] for each in ranks]
    parts: dict[Hashable, list[RankCalls]] = {}
    for each in ranks:
        parts.setdefault(keys[0](each), []).append(each)
    return [found for part in parts.values() for found in _split(part, keys[1:])]


def _folder(ranks: RankCalls) -> str:
    return str(PurePath(ranks.path).parent)


def _name(ranks: RankCalls) -> str:
    return _NUMBER.sub("#", PurePath(ranks.path).name)
