"""What is known of a GPU."""

from __future__ import annotations

from math import inf

import msgspec


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value and where it comes from; its unit stands in the field's name."""

    value: float
    source: str

    def __post_init__(self) -> None:
        if not 0 < self.value < inf:
            raise ValueError("value must be a positive number")
        if not self.source.strip():
            raise ValueError("source must say where the value comes from")


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU's ceilings: datasheet figures, and measured ones where there are any. None means not known."""

    name: str
    recorded_names: list[str]
    """What traces and torch call it."""
    memory_bytes: Figure | None = None
    """Capacity."""
    memory_gb_per_s: Figure | None = None
    memory_measured_gb_per_s: Figure | None = None
    """Rate of a large copy, bytes read plus bytes written."""
    memory_read_measured_gb_per_s: Figure | None = None
    """Rate at which a large tensor is read and summed up; almost nothing is written."""
    bf16_tflops: Figure | None = None
    """Matrix units, dense, with sums in fp32."""
    bf16_measured_tflops: Figure | None = None
    fp8_tflops: Figure | None = None
    fp8_measured_tflops: Figure | None = None
    fp4_tflops: Figure | None = None
    link_gb_per_s: Figure | None = None
    """Rate to its peers, all of them together, in one direction."""
    collective_latency_us: Figure | None = None
    """The shortest kernel of a collective, of a few bytes between two ranks of which none is late."""
    launch_latency_us: Figure | None = None
    """What one launch of an empty kernel costs the host, in a row of them."""
    graph_kernel_us: Figure | None = None
    """What one empty kernel costs the device in the replay of a graph of them."""

    @property
    def memory_ceiling(self) -> Figure | None:
        """The memory's rate that can be reached: measured where known, else the datasheet's."""
        return self.memory_measured_gb_per_s or self.memory_gb_per_s

    def overlaid(self, other: Gpu) -> Gpu:
        """Return this GPU with the figures that `other` has in place of its own; the name stays."""
        known = {field: value for field in FIGURES if (value := getattr(other, field)) is not None}
        names = [*self.recorded_names, *(name for name in other.recorded_names if name not in self.recorded_names)]
        return msgspec.structs.replace(self, recorded_names=names, **known)


FIGURES = tuple(field for field in Gpu.__struct_fields__ if field not in {"name", "recorded_names"})
"""Fields of a GPU that hold a figure."""
