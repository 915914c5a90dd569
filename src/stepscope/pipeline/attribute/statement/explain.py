"""Which place of a function made one of its recorded calls: the ways through it that explain them best."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.pipeline.attribute.statement.sites import FAR, ODD, cost, elsewhere, passing, stays

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.pipeline.attribute.stacks import Call, Calls
    from stepscope.pipeline.attribute.statement.evaluation import Paths
    from stepscope.pipeline.attribute.statement.sites import Site

_LATE = FAR + 1
"""The cost of beginning in the middle of a function whose calls are all recorded."""
_MOST_WORK = 200_000
"""Cells times calls: about half a second. Of a larger function fewer calls are looked at."""
_LEAST_CALLS = 8
_NEVER = 1 << 30
_NEAR = 2 * ODD
"""Places that cost so much more than the cheapest are judged with it by what came after the op."""


@dataclass(frozen=True, slots=True)
class Explained:
    """The places that may have made the call, none much likelier than another."""

    sites: tuple[Site, ...]
    cost: int
    """How much of the recording up to the call the source does not explain; 0: everything is as expected."""
    calls: int
    """How many calls up to there were looked at."""


def explain(paths: Paths, calls: Calls, begin: Sequence[int]) -> Explained | None:
    """Return what made the last of the calls up to the op; None where no place of the function can have.

    Args:
        paths: the ways through the function.
        calls: what it called.
        begin: the cells from which it may have begun, or gone on.

    The cheapest way is found call by call, as Viterbi's algorithm does: for each cell, the least cost of being there
    after the calls so far. Of places that explain these about equally well, those remain that explain best what came
    after. Where the best makes the call under another name than its own, others that cost a little more do too.
    """
    looked_at = calls.until[-max(_MOST_WORK // len(paths.cells), _LEAST_CALLS) :]
    ways = _Ways(paths, built_ins=calls.built_ins)
    from_start = calls.from_start and len(looked_at) == len(calls.until)
    here = [_LATE if from_start else 0] * len(paths.cells)
    for cell in begin:
        here[cell] = 0
    for call in looked_at[:-1]:
        here = ways.after(here, ways.making(here, call), call)
    totals = ways.making(here, looked_at[-1])
    least = min(totals)
    if least >= _NEVER:
        return None
    near = {cell: total for cell, total in enumerate(totals) if total <= least + _NEAR}
    cells = _that_fit(ways, calls, near)
    return Explained(tuple(site for cell in cells if (site := paths.cells[cell])), least, len(looked_at))


def _that_fit(ways: _Ways, calls: Calls, near: Mapping[int, int]) -> list[int]:
    """Return those of the cells, each with its cost so far, that explain best what came before, or everything."""
    made = calls.until[-1]
    most = _MOST_WORK // (len(ways.paths.cells) * len(near))
    rest = dict.fromkeys(near, 0)
    if len(near) > 1 and most:
        later = calls.later[:most]
        whole = calls.to_end and len(later) == len(calls.later)
        rest = {cell: _rest(ways, cell, made, later, whole=whole) for cell in near}
    before = min((total, rest[cell]) for cell, total in near.items())
    least = min(total + rest[cell] for cell, total in near.items())
    best = [cell for cell, total in near.items() if (total, rest[cell]) == before or total + rest[cell] == least]
    oddness = {cell: ways.known[made][cell] or 0 for cell in near}
    oddest = max(oddness[cell] for cell in best)
    if not oddest:
        return best
    return [
        cell
        for cell, total in near.items()
        if cell in best or (total + rest[cell] <= least + ODD and oddness[cell] <= oddest)
    ]


def _rest(ways: _Ways, cell: int, made: Call, later: Sequence[Call], *, whole: bool) -> int:
    """Return the least cost of the calls that follow one that a cell made."""
    only = [_NEVER] * len(ways.paths.cells)
    only[cell] = 0
    here = ways.after([_NEVER] * len(only), only, made)
    for call in later:
        here = ways.after(here, ways.making(here, call), call)
    if not whole:
        return min(here)
    ways.pass_on(here)
    return min(here[-1], min(here) + FAR)  # what raises is over anywhere


@dataclass(frozen=True, slots=True)
class _Ways:
    """The ways through a function, and what each place costs."""

    paths: Paths
    built_ins: bool
    skipped: list[int] = field(init=False)
    """What it costs to pass each cell without a call."""
    known: dict[Call, list[int | None]] = field(default_factory=dict)
    """By call, what it costs that each cell makes it."""

    def __post_init__(self) -> None:
        skipped = [0 if site is None else passing(site, built_ins=self.built_ins) for site in self.paths.cells]
        object.__setattr__(self, "skipped", skipped)

    def making(self, here: list[int], call: Call) -> list[int]:
        """Return the least cost with which each cell makes a call, from the costs of being at each before."""
        self.pass_on(here)
        if call not in self.known:
            self.known[call] = [None if site is None else cost(site, call) for site in self.paths.cells]
        return [
            _NEVER if made is None else min(so_far + made, _NEVER)
            for so_far, made in zip(here, self.known[call], strict=True)
        ]

    def pass_on(self, here: list[int]) -> None:
        """Lower the costs of the cells that can be reached without a call."""
        again = True
        while again:  # a loop's end leads back to its head
            again = False
            for cell, later in enumerate(self.paths.after):
                then = here[cell] + self.skipped[cell]
                for other in later:
                    if then < here[other]:
                        here[other] = then
                        again |= other <= cell

    def after(self, here: Sequence[int], totals: Sequence[int], call: Call) -> list[int]:
        """Return the costs of being at each cell once the call was made, by a cell or by nothing in the source."""
        unexplained = elsewhere(call)
        then = [min(cost_here + unexplained, _NEVER) for cost_here in here]
        for cell, total in enumerate(totals):
            if total >= _NEVER:
                continue
            site = self.paths.cells[cell]
            if site is not None and stays(site, call):
                then[cell] = min(then[cell], total)
            for other in self.paths.after[cell]:
                then[other] = min(then[other], total)
        return then
