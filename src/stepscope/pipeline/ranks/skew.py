"""Who is late at collectives, who waits, and how long the transfer itself takes.

All ranks of a call end together, so that the rank whose kernel is the longest came first, and the shortest kernel is
about the transfer: its rank came last. Lateness is the longest duration less the rank's own, its wait the rank's own
less the shortest. Neither needs the ranks' clocks to agree to the µs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.pipeline.ranks.align import Together

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

LATE_SHARE = 0.1
"""A rank is late if it comes after the median by this part of what the last one does: others come with the median."""
MIN_LATE_US = 1.0
"""And by this: ranks never arrive together to the last µs."""


class Arrive(StrEnum):
    """When late ranks are supposed to arrive at each collective."""

    MEDIAN = "with the median rank"
    EARLIEST = "with the first rank"


@dataclass(frozen=True, slots=True)
class Skew:
    """Lateness at the calls of some steps."""

    calls: Together
    late: Floats
    """Shape [ranks, calls]: µs after the first rank; NaN where a rank takes no part."""
    transfer: Floats
    """Shape [calls]: µs once all are there."""

    @classmethod
    def of(cls, calls: Together) -> Skew:
        """Tell lateness from the kernels' durations; there must be calls."""
        return cls(calls, np.nanmax(calls.us, axis=0) - calls.us, np.nanmin(calls.us, axis=0))

    def arrival_us(self) -> Floats:
        """Return how late each rank is at a call, shape [ranks]: the mean over a step's calls, the median of steps."""
        return self._mean_of_steps(self.late)

    def kernel_us(self) -> Floats:
        """Return how long each rank's kernel takes, shape [ranks], in the same manner."""
        return self._mean_of_steps(self.calls.us)

    def transfer_us(self) -> float:
        """Return how long the transfer takes, in the same manner."""
        return float(self._mean_of_steps(self.transfer[None])[0])

    def wait_us_per_step(self) -> Floats:
        """Return how long each rank waits in a step, shape [ranks]: the sum over its calls, the median of steps."""
        sums, _ = self._by_step(self.calls.us - self.transfer)
        median: Floats = np.median(sums, axis=1)
        return median

    def calls_per_step(self, member: int) -> float:
        """Return how many of the calls a rank takes part in: the median of steps."""
        _, counts = self._by_step(self.calls.us)
        return float(np.median(counts[member]))

    def late_ranks(self) -> Ints:
        """Return the members that arrive after the median, by more than noise."""
        arrival = self.arrival_us()
        after = arrival - np.nanmedian(arrival)
        return np.flatnonzero(after > max(LATE_SHARE * float(after.max()), MIN_LATE_US))

    def durations_us(self, member: int, arrive: Arrive) -> tuple[Floats, Floats]:
        """Return what a rank's calls would take, and how much earlier it would come to them itself; shape [calls]."""
        target = np.nanmedian(self.late, axis=0) if arrive is Arrive.MEDIAN else np.zeros_like(self.transfer)
        early = target - self.late[member]
        return self.transfer + np.maximum(early, 0.0), np.maximum(-early, 0.0)

    def _mean_of_steps(self, values: Floats) -> Floats:
        sums, counts = self._by_step(values)
        means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
        median: Floats = np.nanmedian(means, axis=1)
        return median

    def _by_step(self, values: Floats) -> tuple[Floats, Floats]:
        """Return sum and number of the values in each step, shape [rows of values, steps]."""
        _, step = np.unique(self.calls.step, return_inverse=True)
        count = int(step.max()) + 1
        known = ~np.isnan(values)
        sums = [np.bincount(step, np.where(ok, row, 0.0), count) for row, ok in zip(values, known, strict=True)]
        return np.array(sums), np.array([np.bincount(step, ok, count) for ok in known])
