"""The least time that collectives were measured to take: `collectives.toml`, a source beside each row."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.hardware.gpu import Gpu

MOST_RANKS = 8
"""Groups of more ranks span hosts, over networks of which nothing was measured."""
SMALL_BYTES = 32 << 10
"""Up to here a collective is bound by latency, and what other GPUs reach says something."""


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One collective between some GPUs."""

    collective: str
    recorded_names: list[str]
    """What traces call the GPU."""
    ranks: int
    us_by_bytes: list[tuple[int, float]]
    """Ascending in bytes."""
    source: str

    def us(self, size: int, ranks: int | None) -> float:
        """Return the time for so many bytes and ranks; where the ranks are not known, for those measured.

        Between two sizes the logarithms are interpolated, beyond the largest the time grows as the bytes. What a larger
        message takes bounds a smaller one. Latency is as measured, the rest grows with what each rank sends: (n − 1)/n
        of the bytes (`pipeline/cost/collectives.py`).
        """
        sizes, us = (np.array(column, dtype=np.float64) for column in zip(*self.us_by_bytes, strict=True))
        us = np.minimum.accumulate(us[::-1])[::-1]
        known = float(np.exp(np.interp(np.log(max(size, 1)), np.log(sizes), np.log(us))))
        known *= max(size / float(sizes[-1]), 1.0)
        latency, share = float(us[0]), (1.0 if ranks is None else _sent(ranks) / _sent(self.ranks))
        return min(latency, known) + max(known - latency, 0.0) * share


def _sent(ranks: int) -> float:
    return (ranks - 1) / ranks


class BestKnown(NamedTuple):
    """The least time that is known for a collective."""

    us: float
    source: str
    same_gpu: bool


@cache
def measured() -> Sequence[Measured]:
    """Return all that was measured."""

    class File(msgspec.Struct, forbid_unknown_fields=True):
        measured: list[Measured]

    text = (resources.files("stepscope.hardware") / "collectives.toml").read_bytes()
    return msgspec.toml.decode(text, type=File).measured


def best_known(gpu: Gpu | None, collective: str, size: int, ranks: int | None) -> BestKnown | None:
    """Return the least time of a collective between GPUs of one host; None where nothing comparable was measured.

    Args:
        gpu: of one that is not known or was not measured, only small messages are compared, and with the GPU that takes
            longest.
        collective: `all-reduce`, `all-gather` or `reduce-scatter`.
        size: bytes of the whole.
        ranks: of the group; None: not known.
    """
    if ranks is not None and not 2 <= ranks <= MOST_RANKS:
        return None
    of_kind = [row for row in measured() if row.collective == collective]
    same = [row for row in of_kind if gpu and set(gpu.recorded_names) & set(row.recorded_names)]
    if not same and size > SMALL_BYTES:
        return None
    times = [(row.us(size, ranks), row.source) for row in same or of_kind]
    if not times:
        return None
    us, source = min(times) if same else max(times)
    return BestKnown(us, source, same_gpu=bool(same))
