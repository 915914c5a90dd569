"""The steady window: which steps of a phase figures are taken from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

MIN_STEADY = 3
"""So many steps of a phase must remain if others are left out: fewer show no spread."""
SAME_SIZE = 0.1
"""Steps whose tokens (else requests, else kernels) differ by this share from the typical step's do other work."""
NOISE = 5.0
"""Standard deviations, estimated as 1.4826 × MAD, that a step may be longer than the median: noise stays below."""
OUTLIER_EXCESS = 0.5
"""And so much longer, as a share of the median: steps of one server differ by up to a fifth, and with few of them the
MAD can be next to nothing.
"""
_MAD_TO_DEVIATION = 1.4826  # of a normal distribution


@dataclass(frozen=True, slots=True)
class Window:
    """The steps of one phase: those that figures are taken from, and those left out, by reason."""

    steady: tuple[int, ...]
    first: int | None = None
    """The first of the phase, if it is left out."""
    other_size: tuple[int, ...] = ()
    mixed: tuple[int, int] | None = None
    """Least and greatest size of the steady steps, where too few are alike for the others to be left out."""
    outliers: tuple[int, ...] = ()
    limit_ns: float = 0.0
    """Steps longer than this are outliers."""
    outliers_cost_ns: float = 0.0
    """What the outliers took beyond the median, together."""

    @property
    def left_out(self) -> int:
        """How many steps are left out."""
        return (self.first is not None) + len(self.other_size) + len(self.outliers)


def steady(indices: Ints, size: Floats, time_ns: Ints) -> Window:
    """Leave out what does not stand for a phase, as long as three steps remain.

    First the phase's first step, which still loads modules and fills caches, and in which the host waits in places
    where it never does later. Then steps of another size than the typical one: a median over both would describe
    neither. Then outliers, the longest first: longer than the median by both `NOISE` deviations and `OUTLIER_EXCESS`.

    Args:
        indices: shape [n], the steps of the phase, in order.
        size: shape [n], how much each computes.
        time_ns: shape [n], how long each takes.
    """
    kept = np.arange(indices.size)
    first = None
    if kept.size > MIN_STEADY:
        first, kept = int(indices[0]), kept[1:]
    typical = np.sort(size[kept])[kept.size // 2]
    alike = np.abs(size[kept] - typical) <= SAME_SIZE * typical
    other, mixed = kept[:0], None
    if alike.sum() >= MIN_STEADY:
        kept, other = kept[alike], kept[~alike]
    elif not alike.all():
        mixed = int(size[kept].min()), int(size[kept].max())
    time = time_ns[kept].astype(np.float64)
    median = float(np.median(time))
    deviation = _MAD_TO_DEVIATION * float(np.median(np.abs(time - median)))
    limit = median + max(NOISE * deviation, OUTLIER_EXCESS * median)
    longest_first = np.argsort(-time, kind="stable")[: max(kept.size - MIN_STEADY, 0)]
    out = np.sort(longest_first[time[longest_first] > limit])
    return Window(
        steady=_steps(indices, np.delete(kept, out)),
        first=first,
        other_size=_steps(indices, other),
        mixed=mixed,
        outliers=_steps(indices, kept[out]),
        limit_ns=limit,
        outliers_cost_ns=float((time[out] - median).sum()),
    )


def _steps(indices: Ints, places: Ints) -> tuple[int, ...]:
    return tuple(indices[places].tolist())
