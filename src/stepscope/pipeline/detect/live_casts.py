"""What is left of the KV pool's casts if they are of the live tokens only, which must be read in any case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope import units
from stepscope.pipeline.cost import Transfer
from stepscope.pipeline.whatif import Change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.pipeline.attribute.live_tokens import LiveTokens
    from stepscope.pipeline.detect.pool_casts import PoolCast
    from stepscope.pipeline.detect.rule import Case


@dataclass(frozen=True, slots=True)
class LiveCasts:
    """Casts of a pool, the largest first, and how many of its tokens are live."""

    casts: Sequence[PoolCast]
    live: LiveTokens

    @property
    def fraction(self) -> float:
        """The fraction of the slots of the largest that are live."""
        return self.live.tokens / self.casts[0].slots

    def change(self, case: Case) -> Change:
        """Return the change after which each cast is of the live tokens, at the rate of today's."""
        factor = np.ones(case.linked.kernels.height)
        for cast in self.casts:
            factor[cast.group.rows] = min(self.live.tokens / cast.slots, 1.0)
        return Change.scaled(factor != 1.0, factor)

    def floor_us_per_step(self, case: Case, row: int) -> float | None:
        """Return the least time of the largest cast's calls with live rows of so many elements; None: not known."""
        largest = self.casts[0]
        needed = Transfer(self.live.tokens * row, largest.transfer.source_dtype, largest.transfer.target_dtype)
        floor = needed.floor_us(case.gpu)
        return None if floor is None else floor * largest.group.calls_per_step

    def note(self, floor_us: float | None) -> str:
        """Say how little is live."""
        slots = f"{self.live.tokens:,} of {self.casts[0].slots:,} slots are live ({self.live.source})"
        text = f"{slots}: {units.share(self.fraction)}."
        if floor_us is None:
            return text
        floor = units.time(floor_us)
        return f"{text} Casting only those takes at least {floor} a step, and 0 with a kernel that reads FP8."
