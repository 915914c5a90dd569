"""The least time of a step as typed structs: what `stepscope floor --format json` prints."""

from __future__ import annotations

import msgspec


class FloorComponent(msgspec.Struct, frozen=True, kw_only=True):
    """The necessary work of one part of the model, of all its layers together, on one rank."""

    name: str
    time_us: float
    bytes: float
    flops: float
    bound: str
    """`memory`, `compute` or `latency`: what the time follows from."""


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """The least time that a decode step can take; the components add up to it."""

    floor_us_per_step: float
    components: list[FloorComponent]
    measured_us: float | None
    unexplained_us: float | None
    """measured − floor."""
    tokens_per_s: float
    """Of all requests together, at the floor."""
    assumptions: list[str]
