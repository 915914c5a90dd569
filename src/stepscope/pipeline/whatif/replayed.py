"""Steps as they were measured, or as they would run after a change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Replayed:
    """Steps of one phase, measured or after a change."""

    duration_us: NDArray[np.float64]
    """First GPU work to the next step's first, of whatever phase; the last step is left out, unless it is the
    only one.
    """
    gpu_span_us: NDArray[np.float64]
    """First to last GPU work of each step."""
    busy_us: NDArray[np.float64]
    """Union of the GPU work of each step that has a duration: idle time is the difference of their medians."""
    gaps: int
    """Gaps between pieces of GPU work, over all steps."""
    late_gaps: int
    """Gaps that the host is the reason of: they end right after a launch."""

    @property
    def step_us(self) -> float:
        """Median step duration."""
        return float(np.median(self.duration_us))

    @property
    def idle_us(self) -> float:
        """Time of the median step without GPU work."""
        return max(self.step_us - float(np.median(self.busy_us)), 0.0)

    @property
    def idle_share(self) -> float:
        """Share of the median step without GPU work."""
        return self.share(self.idle_us)

    def share(self, us: float) -> float:
        """Return the share of the median step that a time is; 0 where the steps take none."""
        return us / self.step_us if self.step_us else 0.0
