"""What is changed about the steps before they are replayed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from stepscope.trace import intervals

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


def _no_time() -> Ints:
    return np.zeros((0, 2), dtype=np.int64)


def time_of(calls: pl.DataFrame) -> Ints:
    """Return when calls of the host began and ended, in ns, shape [calls, 2]."""
    start = calls["start_ns"].to_numpy()
    return np.stack((start, start + calls["duration_ns"].to_numpy()), axis=1)


@dataclass(frozen=True, slots=True)
class Change:
    """GPU work taken out, GPU work of another duration, time that the host does not spend: any of them together."""

    removed: Bools
    """Shape [kernels]."""
    launches_free: bool = False
    """Whether the host costs nothing: GPU work follows GPU work, as if all steps were graphs launched ahead."""
    factor: Floats | None = None
    """Shape [kernels]: what each duration is multiplied by; None: every one is as recorded."""
    host_gone: Ints = field(default_factory=_no_time)
    """Shape [n, 2]: start and end, in ns, of what the host does not do any more: calls that wait, launches, ops."""

    def __or__(self, other: Change) -> Change:
        """Return both changes together."""
        factors = [factor for factor in (self.factor, other.factor) if factor is not None]
        return Change(
            self.removed | other.removed,
            self.launches_free or other.launches_free,
            np.prod(factors, axis=0) if factors else None,
            np.concatenate((self.host_gone, other.host_gone)),
        )

    def durations(self, recorded: Ints) -> Ints:
        """Return the duration of each kernel in ns."""
        return recorded if self.factor is None else np.rint(recorded * self.factor).astype(np.int64)

    def host_freed_before(self, times: Ints) -> Ints:
        """Return, for each moment of the recording, how much of the host's time before it is gone, in ns."""
        return intervals.time_covered_before(times, *intervals.union(*self.host_gone.T))
