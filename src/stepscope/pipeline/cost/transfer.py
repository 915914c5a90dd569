"""Bytes that copies and casts must move, and how fast the GPU moved them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.dtypes import item_bytes

if TYPE_CHECKING:
    from stepscope.hardware import Gpu


@dataclass(frozen=True, slots=True)
class Transfer:
    """One copy or cast of a whole tensor."""

    elements: int
    source_dtype: str
    target_dtype: str

    @property
    def bytes(self) -> int:
        """Bytes read plus bytes written, each element once."""
        return self.elements * (item_bytes(self.source_dtype) + item_bytes(self.target_dtype))

    def achieved_gb_per_s(self, us: float) -> float | None:
        """Return the rate in 1e9 bytes/s of a call that took `us`; None where no time was recorded."""
        return self.bytes / us / 1e3 if us else None

    def floor_us(self, gpu: Gpu | None) -> float | None:
        """Return the least time in µs: at the measured copy rate where known, else at the datasheet's peak."""
        rate = gpu.memory_ceiling if gpu else None
        return None if rate is None else self.bytes / rate.value / 1e3
