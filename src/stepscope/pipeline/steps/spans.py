"""How long steps take on the GPU: the only place that measures them, for the trace and for its replays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_NEVER = -(1 << 62)
_FOREVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Spans:
    """When each step begins and ends on the GPU."""

    begin: Ints
    """Shape [steps]: start of the first GPU work."""
    end: Ints
    """Shape [steps]: end of the last GPU work."""
    next_begin: Ints
    """Shape [steps]: start of the next step that did GPU work, of whatever phase."""

    @property
    def ran(self) -> NDArray[np.bool_]:
        """Which steps did GPU work."""
        ran: NDArray[np.bool_] = self.begin != _FOREVER
        return ran

    @property
    def followed(self) -> NDArray[np.bool_]:
        """Which steps are followed by another, so that their duration is known."""
        followed: NDArray[np.bool_] = self.next_begin != _FOREVER
        return followed

    def gpu_span(self, of: Ints) -> Ints:
        """Return the time from the first to the last GPU work of each of these steps, in ns."""
        return self.end[of] - self.begin[of]

    def duration(self, of: Ints) -> Ints:
        """Return the time from the first GPU work of each of these steps to the next step's, in ns."""
        duration: Ints = np.maximum(self.next_begin[of] - self.begin[of], 0)
        return duration


def spans(step: Ints, start: Ints, end: Ints, count: int) -> Spans:
    """Return when each of `count` steps begins and ends.

    Args:
        step: shape [rows of GPU work], each in [0, count).
        start: shape [rows].
        end: shape [rows].
        count: number of steps.
    """
    begin, last, next_begin = np.full(count, _FOREVER), np.full(count, _NEVER), np.full(count, _FOREVER)
    np.minimum.at(begin, step, start)
    np.maximum.at(last, step, end)
    ran = np.flatnonzero(begin != _FOREVER)
    next_begin[ran[:-1]] = begin[ran[1:]]
    return Spans(begin, last, next_begin)
