"""What `stepscope what-if` answers: the steps of a trace after changes."""

from __future__ import annotations

import msgspec

from stepscope.document.diagnosis import SCHEMA_VERSION, Range, Rung, Spread, Tool


class PredictedChange(msgspec.Struct, frozen=True, kw_only=True):
    """The step after one change alone."""

    change: str
    """The rule, the glob or the `glob=factor` that was asked for."""
    calls_per_step: float
    """Kernels, and calls of the host that launch none, that it is about."""
    time_us_per_step: float
    """GPU time that those cover today: never what is gained."""
    step_us: Range
    gpu_span_us: Range
    unprofiled_step_us: float | None
    """Without the profiler; null where no honest estimate is known."""
    tokens_per_s: Range | None
    """Low with the slowest step; null where the step's tokens are not known."""
    gain_fraction: float
    """Of today's step."""
    assumption: str


class PredictedPhase(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one phase: today, after each change alone, and after one more at a time."""

    phase: str
    steady: int
    batch_size: int | None
    duration_us: Spread
    gpu_span_us: Spread
    unprofiled_duration_us: float | None
    tokens_per_s: float | None
    withheld: str | None
    """Why nothing is predicted; null where it is."""
    changes: list[PredictedChange]
    ladder: list[Rung]
    """The changes one after another, as they were asked for: the last rung is all of them together."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document."""

    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    trace: str
    complete: bool
    """False: the trace is incomplete, so that a gap, and with it a gain, may be work that was not recorded."""
    phases: list[PredictedPhase]
