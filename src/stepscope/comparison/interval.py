"""The difference of two medians, and whether noise explains it: a bootstrap over the steps of each trace.

The steps of each trace are drawn again, as many as there are and with repetition, and the medians compared; 95% of the
differences lie within the interval (Efron's percentile method). Steps are taken as independent of each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.document import Range, Verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEAST_STEPS = 5
"""Steps that each trace must hold: fewer show too little of the noise."""
LEAST_VALUES = 3
"""Of those, the ones that figures are of: the first and the last of five are left out of the medians."""
LEVEL = 0.95
DRAWS = 20_000
_SEED = 0


class Difference(NamedTuple):
    """AFTER − BEFORE."""

    us: Range
    verdict: Verdict


def difference(before: Floats, after: Floats, *, steps: int) -> Difference:
    """Return the difference of the medians, as a bootstrap interval or as the widest range that single values allow.

    Args:
        before: shape [n], µs.
        after: shape [m], µs.
        steps: how many steps the trace with fewer of them holds.
    """
    expected = float(np.median(after) - np.median(before))
    if steps < LEAST_STEPS or min(before.size, after.size) < LEAST_VALUES:
        low, high = float(after.min() - before.max()), float(after.max() - before.min())
        return Difference(Range(low=low, expected=expected, high=high), Verdict.TOO_FEW_STEPS)
    draw = np.random.default_rng(_SEED)
    low, high = np.quantile(
        _medians(after, draw) - _medians(before, draw), ((1 - LEVEL) / 2, (1 + LEVEL) / 2), method="nearest"
    ).tolist()
    verdict = Verdict.SLOWER if low > 0 else Verdict.FASTER if high < 0 else Verdict.NO_DIFFERENCE
    return Difference(Range(low=low, expected=expected, high=high), verdict)


def _medians(values: Floats, draw: np.random.Generator) -> Floats:
    """Return the medians of `DRAWS` resamples, without drawing them whole.

    A resample of n takes the sorted values at ⌊n U⌋ for n uniform U. The k-th smallest U has the distribution
    Beta(k, n − k + 1), and the one after it is the least of n − k that are uniform above it (David & Nagaraja, Order
    Statistics, 2.5). So long traces cost no more than short ones.
    """
    ordered, n = np.sort(values), values.size
    k = (n + 1) // 2
    lower = draw.beta(k, n - k + 1, DRAWS)
    middle = ordered[_at(lower, n)]
    if n % 2 == 0:
        upper = lower + (1 - lower) * draw.beta(1, n - k, DRAWS)
        middle = (middle + ordered[_at(upper, n)]) / 2
    return np.asarray(middle)


def _at(uniform: Floats, n: int) -> NDArray[np.int64]:
    return np.minimum((uniform * n).astype(np.int64), n - 1)
