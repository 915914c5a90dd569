"""The change by which ranks do not wait for late ones, as one rank's steps show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.pipeline.whatif import Change

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.pipeline.detect.rule import Case, RanksCase
    from stepscope.pipeline.ranks import Arrive

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


def on_time(ranks: RanksCase, member: int, case: Case, arrive: Arrive) -> Change:
    """Return the change of one rank's steps if late ranks came to each collective when told.

    Its collectives take as long as it would still wait, and the transfer. Where it is late itself, what it does since
    the collective before takes so much less.

    Args:
        ranks: the ranks.
        member: the rank whose steps are changed.
        case: its trace.
        arrive: when late ranks arrive.
    """
    kernels = case.linked.kernels
    recorded = kernels["duration_ns"].to_numpy()
    takes_part = ranks.calls.row[member] >= 0
    rows = ranks.calls.row[member][takes_part]
    lasting, earlier = (us[takes_part] * 1e3 for us in ranks.skew.durations_us(member, arrive))
    factor = np.ones(recorded.shape)
    _speed_up(factor, kernels["start_ns"].to_numpy(), recorded, rows, earlier)
    shorter = np.zeros(recorded.shape)
    shorter[rows] = recorded[rows] - lasting
    return Change.scaled(factor != 1.0, factor) | Change.shorter(shorter)


def _speed_up(factor: Floats, start: Ints, recorded: Ints, calls: Ints, earlier: Floats) -> None:
    """Shorten what runs between one collective and the next by so many ns, as far as it runs so long."""
    order = np.argsort(start[calls], kind="stable")
    calls, earlier = calls[order], earlier[order]
    if not earlier.any():
        return
    before = np.searchsorted(start[calls], start, side="right")  # the collective that each kernel runs before
    before[calls] = calls.size
    time = np.bincount(before, recorded, minlength=calls.size + 1)[: calls.size]
    kept = 1 - np.minimum(np.divide(earlier, time, out=np.zeros_like(earlier), where=time > 0), 1.0)
    inside = before < calls.size
    factor[inside] = kept[before[inside]]
