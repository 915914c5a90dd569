"""The least time of a piece of work on a GPU, and what bounds it.

The roofline: work takes at least as long as its bytes at the memory's rate, and as its operations at the matrix units'
(Williams, Waterman, Patterson, "Roofline", CACM 52 (4), 2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from stepscope.hardware import Gpu
    from stepscope.pipeline.cost.work import Work


class Bound(StrEnum):
    """What limits a piece of work."""

    MEMORY = "memory"
    COMPUTE = "compute"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Rates of a GPU: measured ones where known, else the datasheet's."""

    gb_per_s: float
    """Memory, in 1e9 bytes/s, bytes read plus bytes written."""
    tflops: Mapping[str, float]
    """Matrix units, in 1e12 operations/s, by type."""

    @classmethod
    def of(cls, gpu: Gpu | None) -> Self | None:
        """Return a GPU's ceilings; None where its memory's rate is not known."""
        memory = None if gpu is None else gpu.memory_measured_gb_per_s or gpu.memory_gb_per_s
        if gpu is None or memory is None:
            return None
        known = {
            "BFloat16": gpu.bf16_measured_tflops or gpu.bf16_tflops,
            "Float8_e4m3fn": gpu.fp8_measured_tflops or gpu.fp8_tflops,
            "Float4": gpu.fp4_tflops,
        }
        tflops = {dtype: figure.value for dtype, figure in known.items() if figure is not None}
        return cls(memory.value, tflops)

    def floor(self, work: Work) -> tuple[float, Bound]:
        """Return the least time of the work in µs, and what bounds it.

        A type without a matrix unit of its own is converted and multiplied as BF16.
        """
        memory_us = work.bytes / self.gb_per_s / 1e3
        rate = self.tflops.get(work.multiply_dtype) or self.tflops.get("BFloat16")
        compute_us = work.flops / rate / 1e6 if rate else 0.0
        return (memory_us, Bound.MEMORY) if memory_us >= compute_us else (compute_us, Bound.COMPUTE)
