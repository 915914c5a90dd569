"""What a GPU was measured to reach, as typed structs: what `stepscope calibrate --format json` prints."""

from __future__ import annotations

import msgspec


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """A ceiling that was measured; the unit stands in its name, which is that of a figure in a GPU's file."""

    name: str
    value: float
    """Median of the repetitions."""
    spread: float
    """Distance between their quartiles, in the same unit."""
    datasheet: float | None
    """The vendor's figure for it, in the same unit."""
    how: str


class NotMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """A ceiling that could not be measured."""

    name: str
    reason: str


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU after a second of nothing but matrix products, as nvidia-smi tells it."""

    sm_mhz: float | None
    memory_mhz: float | None
    power_w: float | None
    temperature_c: float | None


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The ceilings of one GPU, and where and how they were measured."""

    gpu: str
    """Name for `--gpu`."""
    device: str
    """What torch calls it."""
    date: str
    torch: str
    runtime: str
    """CUDA's or ROCm's version, as torch was built for it."""
    driver: str | None
    clocks: Clocks | None
    measured: list[Measurement]
    not_measured: list[NotMeasured]
    kept_in: str
    """The file from which the figures are used from now on."""
