"""The least time of a piece of work on a GPU, and what bounds it.

The roofline: work takes at least as long as its bytes at the memory's rate, and as its operations at the matrix units'
(Williams, Waterman, Patterson, "Roofline", CACM 52 (4), 2009).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from stepscope.hardware import Figure, Gpu
    from stepscope.pipeline.cost.work import Work

_ANY_TYPE = "BFloat16"


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
    link_gb_per_s: float | None = None
    """To all peers together, in 1e9 bytes/s in one direction; None: not known."""
    collective_latency_us: float | None = None
    """What a collective of a few bytes takes; None: not known."""
    least_kernel_us: float | None = None
    """What the device takes for an empty kernel; None: not known."""
    measured: frozenset[str] = frozenset()
    """Which of the rates were measured: types, and `memory`; the others are the datasheet's."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each rate comes from: by type, and `memory`, `link`, `latency`."""

    @classmethod
    def of(cls, gpu: Gpu | None) -> Self | None:
        """Return a GPU's ceilings; None where its memory's rate is not known."""
        memory = gpu.memory_ceiling if gpu else None
        if gpu is None or memory is None:
            return None
        known = {
            "BFloat16": gpu.bf16_measured_tflops or gpu.bf16_tflops,
            "Float8_e4m3fn": gpu.fp8_measured_tflops or gpu.fp8_tflops,
            "Float4": gpu.fp4_tflops,
        }
        measured = {
            "memory": gpu.memory_measured_gb_per_s,
            "BFloat16": gpu.bf16_measured_tflops,
            "Float8_e4m3fn": gpu.fp8_measured_tflops,
        }
        figures = {**known, "memory": memory, "link": gpu.link_gb_per_s, "latency": gpu.collective_latency_us}
        return cls(
            gb_per_s=memory.value,
            tflops={dtype: figure.value for dtype, figure in known.items() if figure is not None},
            link_gb_per_s=_value(gpu.link_gb_per_s),
            collective_latency_us=_value(gpu.collective_latency_us),
            least_kernel_us=_value(gpu.graph_kernel_us),
            measured=frozenset(name for name, figure in measured.items() if figure is not None),
            sources={name: figure.source for name, figure in figures.items() if figure is not None},
        )

    def floor(self, *works: Work) -> tuple[float, Bound]:
        """Return the least time in µs of works whose traffic and arithmetic all overlap, and what bounds it."""
        memory_us = sum(work.bytes for work in works) / self.gb_per_s / 1e3
        compute_us = sum(self._compute_us(work) for work in works)
        return (memory_us, Bound.MEMORY) if memory_us >= compute_us else (compute_us, Bound.COMPUTE)

    def call_floor(self, work: Work) -> tuple[float, Bound]:
        """Return the least time in µs of one call that runs by itself, and what bounds it.

        A collective also takes its exchange. No call takes less than an empty kernel: one whose work takes less is
        bound by latency.
        """
        floor_us, bound = self.floor(work)
        if work.sent_bytes is not None:
            floor_us, bound = max((floor_us, bound), self.exchange(1, work.sent_bytes))
        least_us = self.least_kernel_us or 0.0
        return (floor_us, bound) if floor_us >= least_us else (least_us, Bound.LATENCY)

    def exchange(self, count: float, bytes_each: float) -> tuple[float, Bound]:
        """Return the least time in µs of `count` collectives in which a rank sends so many bytes, and what bounds it.

        Each takes the latency and the bytes at the links' rate (R. Hockney, "The communication challenge for MPP",
        Parallel Computing 20 (3), 1994); what is not known of the two counts nothing. Bytes over links are `memory`.
        """
        latency_us = self.collective_latency_us or 0.0
        moving_us = bytes_each / self.link_gb_per_s / 1e3 if self.link_gb_per_s else 0.0
        bound = Bound.LATENCY if latency_us >= moving_us else Bound.MEMORY
        return count * (latency_us + moving_us), bound

    def multiplied_as(self, dtype: str) -> str:
        """Return the type that a type is multiplied in: its own where there is a rate for it, else BF16."""
        return dtype if dtype in self.tflops else _ANY_TYPE

    def is_measured(self, bound: Bound, dtype: str) -> bool:
        """Tell whether the rate that bounds work multiplied in a type was measured."""
        return (self.multiplied_as(dtype) if bound is Bound.COMPUTE else "memory") in self.measured

    def _compute_us(self, work: Work) -> float:
        rate = self.tflops.get(self.multiplied_as(work.multiply_dtype))
        return work.flops / rate / 1e6 if rate else 0.0


def _value(figure: Figure | None) -> float | None:
    return None if figure is None else figure.value
