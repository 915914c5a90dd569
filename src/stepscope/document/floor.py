"""The least time of a step as typed structs: what `stepscope floor --format json` prints."""

from __future__ import annotations

import msgspec


class FloorCase(msgspec.Struct, frozen=True, kw_only=True):
    """What the floor is of, by the names that the command takes."""

    model: str
    gpu: str
    tp: int
    ep: int
    dp: int
    weights: str
    """Format of the routed experts, of all linear layers in a dense model."""
    kv_dtype: str
    batch: int
    context: int


class FloorComponent(msgspec.Struct, frozen=True, kw_only=True):
    """The necessary work of one part of the model, of all its layers together, on one rank."""

    name: str
    time_us: float
    bytes: float
    """Read from and written to memory; of collectives, sent over the links."""
    flops: float
    bound: str
    """What the time follows from: `memory` (bytes; of collectives those over the links), `compute` or `latency`."""


class GrowthPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The floor at another batch or context."""

    batch: int
    context: int
    floor_us_per_step: float
    tokens_per_s: float


class WaterfallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the way from the floor to the measured step. The gaps of all rows add up to measured − floor."""

    name: str
    components: list[str]
    """Those of the floor that it compares with; empty for work that the floor does without."""
    kernel_classes: list[str]
    """Those of the trace; empty where none was given, and for idle time."""
    floor_us: float
    measured_us: float | None
    """Null where only the whole step was measured."""
    gap_us: float | None
    """measured − floor."""


class BatchPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace measured at one batch size."""

    trace: str
    batch_size: int
    steps: int
    duration_us: float
    """Median."""


class BatchCost(msgspec.Struct, frozen=True, kw_only=True):
    """A line through times at several batch sizes: time = fixed + batch size × per request."""

    name: str
    """`step`, a kernel class, or `idle`."""
    fixed_us: float
    per_request_us: float
    residual_us: float | None
    """Standard deviation of the points about the line; null with two points, which always lie on one."""
    fixed_error_us: float | None
    """Standard error of `fixed_us`; null likewise."""


class Amortisation(msgspec.Struct, frozen=True, kw_only=True):
    """Fixed and batch-proportional costs, told apart."""

    points: list[BatchPoint]
    step: BatchCost
    parts: list[BatchCost]
    """By kernel class, and idle time; they add up to the step's."""
    proportional_share: list[float | None]
    """At each point: share of the step, as fitted, that does not amortise. Null where the line has a negative part."""


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """The least time that a decode step can take; the components add up to it."""

    case: FloorCase
    floor_us_per_step: float
    components: list[FloorComponent]
    measured_us: float | None
    unexplained_us: float | None
    """measured − floor."""
    tokens_per_s: float
    """Of all requests together, at the floor."""
    tokens_per_s_per_stream: float
    growth: list[GrowthPoint]
    waterfall: list[WaterfallRow]
    """Empty where nothing was measured."""
    amortisation: Amortisation | None
    """Null without traces of several batch sizes."""
    assumptions: list[str]
