"""Which collective of one rank is which of another, on one clock.

A collective ends on all ranks at about the same moment, because nobody has its result before the last one came. So two
ranks' clocks are those that let their calls of the same key, step and ordinal end together: an offset and a drift,
which are no skew. What is left (`Clock.residual_us`) tells whether they are the same calls at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.ranks.calls import RankCalls
    from stepscope.pipeline.ranks.messages import Message
    from stepscope.pipeline.steps import Phase

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

MOST_APART_NS = 20_000
"""Calls whose ends lie further apart are not the same. Of two H200 of one host they lie at most 0.43 µs apart."""
ALIKE_NS = 500
"""Residuals that differ by less say nothing about which steps are the same."""
MIN_CALLS = 4
"""So many calls must be common to two ranks: an offset and a drift fit any two."""
MOST_STEPS_AHEAD = 3
"""Profilers of several ranks begin so many steps apart at most."""
MOST_DRIFT = 1e-3
"""Clocks of hosts run apart by less than this fraction of the time."""
_CALL = ("key", "step", "ordinal")


@dataclass(frozen=True, slots=True)
class Clock:
    """How a rank's clock and steps are numbered, seen from the first rank."""

    steps_ahead: int
    """By how much its numbers of steps are higher."""
    offset_ns: float
    drift: float
    residual_us: float
    """Median distance of the ends of the same calls, once offset and drift are taken out."""


_OWN_CLOCK = Clock(0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Together:
    """Ranks that take part in the same collectives."""

    ranks: Sequence[RankCalls]
    clocks: Sequence[Clock]
    step: Ints
    """Shape [calls]: the step of each, as the first rank counts them."""
    us: Floats
    """Shape [ranks, calls]: how long each rank's kernel took; NaN where a rank takes no part, or ends elsewhere."""
    row: Ints
    """Shape [ranks, calls]: the kernel in each rank's trace; −1 where there is none."""
    message: Ints
    """Shape [calls]: index into `messages`; −1: no rank's trace tells what it carries."""
    messages: Sequence[Message]

    @property
    def residual_us(self) -> float:
        """The largest residual of a rank's clock."""
        return max(clock.residual_us for clock in self.clocks)

    def of_phase(self, phase: Phase) -> Together:
        """Return the calls in the steps of a phase that the first rank's figures are taken from, and their ranks."""
        chosen = np.isin(self.step, np.asarray(self.ranks[0].steady.get(phase, ()), dtype=np.int64))
        row = self.row[:, chosen]
        takes_part = np.any(row >= 0, axis=1)
        return replace(
            self,
            ranks=list(compress(self.ranks, takes_part.tolist())),
            clocks=list(compress(self.clocks, takes_part.tolist())),
            step=self.step[chosen],
            us=self.us[:, chosen][takes_part],
            row=row[takes_part],
            message=self.message[chosen],
        )


def align(ranks: Sequence[RankCalls]) -> tuple[list[Together], list[RankCalls]]:
    """Return the groups of ranks that take part in the same collectives, and the ranks that share none with others."""
    found, alone = [], [each for each in ranks if not each.calls.height]
    rest = [each for each in ranks if each.calls.height]
    while rest:
        first, others = _Seen.first(rest[0]), rest[1:]
        group = [first]
        grown = True
        while grown and others:  # a rank may share calls with one that came later
            placed = {each.trace: seen for each in others if (seen := _placed(each, group)) is not None}
            group += placed.values()
            others = [each for each in others if each.trace not in placed]
            grown = bool(placed)
        if len(group) > 1:
            found.append(_together(group))
        else:
            alone.append(first.rank)
        rest = others
    return found, alone


@dataclass(frozen=True, slots=True)
class _Seen:
    """A rank's calls with their steps and ends as the first rank counts and times them."""

    rank: RankCalls
    clock: Clock
    calls: pl.DataFrame

    @classmethod
    def first(cls, rank: RankCalls) -> _Seen:
        return cls(rank, _OWN_CLOCK, rank.calls.with_columns(pl.col("end_ns").cast(pl.Float64)))


def _placed(rank: RankCalls, group: Sequence[_Seen]) -> _Seen | None:
    """Return a rank as the group's first sees it; None where its calls end with no other's."""
    for other in group:
        clocks = sorted(_clocks(rank, other), key=lambda c: (c.residual_us * 1e3 // ALIKE_NS, abs(c.steps_ahead)))
        if clocks and clocks[0].residual_us * 1e3 <= MOST_APART_NS:
            clock = clocks[0]
            end = pl.col("end_ns") - clock.offset_ns - clock.drift * pl.col("end_ns")
            return _Seen(rank, clock, rank.calls.with_columns(end, pl.col("step") - clock.steps_ahead))
    return None


def _clocks(rank: RankCalls, other: _Seen) -> Iterator[Clock]:
    """Yield the clock by each number of steps that a rank may be ahead of another."""
    theirs = other.calls.select(*_CALL, pl.col("end_ns").alias("their_end"))
    for ahead in range(-MOST_STEPS_AHEAD, MOST_STEPS_AHEAD + 1):
        both = rank.calls.with_columns(pl.col("step") - ahead).join(theirs, on=_CALL).sort("end_ns")
        if both.height < MIN_CALLS:
            continue
        end = both["end_ns"].to_numpy().astype(np.float64)
        apart = end - both["their_end"].to_numpy()
        half = end.size // 2
        between = np.median(end[half:]) - np.median(end[:half])
        drift = (np.median(apart[half:]) - np.median(apart[:half])) / between if between else 0.0
        drift = float(drift) if abs(drift) <= MOST_DRIFT else 0.0
        offset = float(np.median(apart - drift * end))
        yield Clock(ahead, offset, drift, float(np.median(np.abs(apart - drift * end - offset))) / 1e3)


def _together(group: Sequence[_Seen]) -> Together:
    messages = list(dict.fromkeys(message for seen in group for message in seen.rank.messages))
    calls = pl.concat([_numbered(member, seen, messages) for member, seen in enumerate(group)])
    middle = pl.col("end_ns").quantile(0.5, "lower").over(_CALL)  # one of the ends, also of two
    calls = calls.filter((pl.col("end_ns") - middle).abs() <= MOST_APART_NS)
    calls = calls.filter(pl.len().over(_CALL) > 1)
    each = calls.group_by(*_CALL, maintain_order=True).agg(pl.col("message").max()).with_row_index("call")
    calls = calls.join(each.select(*_CALL, "call"), on=_CALL, how="left", maintain_order="left")
    us, row = np.full((len(group), each.height), np.nan), np.full((len(group), each.height), -1)
    at = calls["member"].to_numpy(), calls["call"].to_numpy()
    us[at], row[at] = calls["duration_ns"].to_numpy() / 1e3, calls["row"].to_numpy()
    ranks, clocks = [seen.rank for seen in group], [seen.clock for seen in group]
    return Together(ranks, clocks, each["step"].to_numpy(), us, row, each["message"].to_numpy(), messages)


def _numbered(member: int, seen: _Seen, messages: Sequence[Message]) -> pl.DataFrame:
    """Return a rank's calls with its number, and their messages as all ranks number them."""
    number = np.array([*(messages.index(message) for message in seen.rank.messages), -1])  # −1 takes the last
    return seen.calls.with_columns(
        pl.lit(member).alias("member"), pl.Series("message", number[seen.calls["message"].to_numpy()])
    )
