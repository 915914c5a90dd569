"""What is changed about the steps before they are replayed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


_MOST_NS = 1 << 61
"""All kernels, one after another, and the time of the trace before them, in 64 bits."""


def _no_time() -> Ints:
    return np.zeros((0, 3), dtype=np.int64)


def time_of(calls: pl.DataFrame) -> Ints:
    """Return thread, start and end of each of the host's calls, ops or frames, in ns; shape [calls, 3]."""
    start = calls["start_ns"].to_numpy()
    return np.stack((calls["thread"].to_numpy(), start, start + calls["duration_ns"].to_numpy()), axis=1)


@dataclass(frozen=True, slots=True)
class Change:
    """GPU work taken out, GPU work of another duration, time that the host does not spend: any of them together."""

    removed: Bools
    """Shape [kernels]."""
    launches_free: bool = False
    """Whether the host costs nothing: GPU work follows GPU work, as if all steps were graphs launched ahead."""
    factor: Floats | None = None
    """Shape [kernels]: what each duration is multiplied by; None: every one is as recorded."""
    shorter_ns: Floats | None = None
    """Shape [kernels]: by how much each is shorter besides, before it is multiplied; negative: longer. What different
    changes take from one kernel, such as waiting and transfer, adds up."""
    host_gone: Ints = field(default_factory=_no_time)
    """Shape [n, 3]: thread, start and end, in ns, of what the host does not do any more: waits, launches, ops."""

    def __or__(self, other: Change) -> Change:
        """Return both changes together."""
        factors = [factor for factor in (self.factor, other.factor) if factor is not None]
        shorter = [ns for ns in (self.shorter_ns, other.shorter_ns) if ns is not None]
        return Change(
            self.removed | other.removed,
            self.launches_free or other.launches_free,
            np.prod(factors, axis=0) if factors else None,
            np.sum(shorter, axis=0) if shorter else None,
            np.concatenate((self.host_gone, other.host_gone)),
        )

    @classmethod
    def scaled(cls, rows: Bools, factor: Floats | float) -> Change:
        """Return the change of these rows' durations by a factor: one for all, or one for each kernel of the trace."""
        return cls(np.zeros(rows.shape, dtype=np.bool_), factor=np.where(rows, factor, 1.0))

    @classmethod
    def shorter(cls, ns: Floats) -> Change:
        """Return the change after which each kernel, shape [kernels], lasts so many ns less."""
        return cls(np.zeros(ns.shape, dtype=np.bool_), shorter_ns=ns)

    @classmethod
    def lasting(cls, rows: Bools, duration_ns: Floats | float, recorded_ns: Ints) -> Change:
        """Return the change after which these rows last so long: one duration for all, or one for each kernel."""
        return cls.scaled(rows, duration_ns / np.maximum(recorded_ns, 1))

    @property
    def touched(self) -> Bools:
        """Which kernels it removes, or gives another duration; shape [kernels]."""
        touched = self.removed if self.factor is None else self.removed | (self.factor != 1.0)
        return touched if self.shorter_ns is None else touched | (self.shorter_ns != 0.0)

    def durations(self, recorded: Ints) -> Ints:
        """Return the duration of each kernel in ns, bounded so that their sum fits; what is removed lasts no time."""
        lasting = recorded if self.shorter_ns is None else np.maximum(recorded - self.shorter_ns, 0.0)
        lasting = lasting if self.factor is None else lasting * self.factor
        most = _MOST_NS // max(recorded.size, 1)
        return np.where(self.removed, 0, np.rint(np.minimum(lasting, most)).astype(np.int64))
