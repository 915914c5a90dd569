"""Two traces side by side as typed structs: what `stepscope compare --format json` prints.

Differences are AFTER − BEFORE. Figures per step are medians over the steady steps of one phase and batch size. `trace`
is an index into the traces of both, which stand in pairs.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from stepscope.document.diagnosis import SCHEMA_VERSION, Diagnosis, Range, Severity, Spread, Tool


class Verdict(StrEnum):
    """What can be said of the difference of two medians."""

    SLOWER = "slower"
    FASTER = "faster"
    NO_DIFFERENCE = "no difference"
    """The interval holds zero: noise explains it."""
    TOO_FEW_STEPS = "too few steps"
    """Nothing is claimed: the range is the widest that single steps allow, and no interval."""


class SideOfSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one trace."""

    batch_size: int | None
    tokens: int | None
    count: int
    """Steps found."""
    timed: int
    """Those that have a duration, and that the median uses."""
    duration_us: Spread
    gpu_span_us: Spread


class StepDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one phase and batch size in both traces."""

    trace: int
    phase: str
    before: SideOfSteps
    after: SideOfSteps
    delta_us: Range
    """Of the median durations; `low` and `high` bound 95% of the bootstrap's, unless there are too few steps."""
    gpu_span_delta_us: Range
    """The same of the GPU spans, which the profiler's cost on the host lengthens less."""
    verdict: Verdict
    gpu_span_verdict: Verdict

    @property
    def slowdown(self) -> float | None:
        """By which fraction of BEFORE's median AFTER's is longer, beyond noise; None where it is not."""
        median = self.before.duration_us.median
        return self.delta_us.expected / median if self.verdict is Verdict.SLOWER and median else None


class Unpaired(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that the other trace has none of."""

    trace: int
    side: str
    """`before` or `after`."""
    phase: str
    batch_size: int | None
    count: int


class WorkSide(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a class, kernel or cause in one trace."""

    calls_per_step: float | None
    time_us_per_step: float
    share_of_step: float


class ClassDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel class; its time is the union of its intervals, as in a diagnosis."""

    trace: int
    phase: str
    batch_size: int | None
    kernel_class: str
    before: WorkSide | None
    """Null: it does not run there, as everywhere below."""
    after: WorkSide | None
    delta_us: float


class WaterfallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the way from BEFORE's median step to AFTER's: the parts of a phase and batch size add up to it.

    Every moment belongs to the kernel that was the first to run then, or to `idle`.
    """

    trace: int
    phase: str
    batch_size: int | None
    name: str
    """A kernel class, or `idle`."""
    before_us: float
    after_us: float
    delta_us: float


class KernelDelta(msgspec.Struct, frozen=True, kw_only=True):
    """All launches of one kernel in a step; its time is the sum of theirs."""

    trace: int
    phase: str
    batch_size: int | None
    kernel: str
    renamed_to: str | None
    """Its name in AFTER, where that is another: paired by its places in the step, its grids and its class."""
    kernel_class: str
    before: WorkSide | None
    after: WorkSide | None
    delta_us: float


class FindingDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule found in one phase."""

    trace: int
    rule: str
    phase: str
    title: str
    severity_before: Severity | None
    severity_after: Severity | None
    before: WorkSide | None
    after: WorkSide | None
    delta_us: float
    """Of the time that the cause takes per step, which is not what it would gain."""


class FindingDeltas(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules found in one trace and not in the other, or otherwise there."""

    gone: list[FindingDelta]
    new: list[FindingDelta]
    changed: list[FindingDelta]
    """In both, of another severity or with a time that differs by 1% of BEFORE's step."""
    unchanged: list[FindingDelta]
    cannot_tell: list[FindingDelta]
    """In one trace, where the other cannot answer the rule's question."""


class Foretold(msgspec.Struct, frozen=True, kw_only=True):
    """One duration as BEFORE's what-if foretold it and as AFTER measured it."""

    before_us: float
    predicted_us: Range
    measured_us: float
    unexplained_us: float
    """measured − expected."""
    is_miss: bool
    """Whether what was measured lies outside the predicted range."""


class PredictionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What BEFORE said the step would be without the causes that are gone, beside the step without them."""

    trace: int
    rules: list[str]
    phase: str
    batch_size: int | None
    step: Foretold
    gpu_span: Foretold
    assumption: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document."""

    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    before: Diagnosis
    after: Diagnosis
    notes: list[str]
    """What makes the two hard to compare, a sentence each."""
    delta_us: Range
    """Of the first of `steps`."""
    steps: list[StepDelta]
    """Decode first."""
    unpaired: list[Unpaired]
    waterfall: list[WaterfallDelta]
    by_class: list[ClassDelta]
    by_kernel: list[KernelDelta]
    """Every kernel, the greatest difference first."""
    findings: FindingDeltas
    prediction: PredictionResult | None
    """Of the first pair of traces that has one; null where no finding is gone, or none that a what-if foretold."""
