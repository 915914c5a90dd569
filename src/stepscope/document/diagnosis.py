"""The diagnosis as typed structs: what `--format json` prints, and what the renderers draw.

Times are µs (`_us`), sizes bytes (`_bytes`), rates 1e9 bytes/s (`_gb_per_s`); null means not known. Figures per step
are medians over the steady steps, shares are of the step duration.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from stepscope.version import __version__

SCHEMA_VERSION = 1


class Severity(StrEnum):
    """How much a finding matters, by the larger of its two gains."""

    CRITICAL = "critical"
    MAJOR = "major"
    MINOR = "minor"
    INFO = "info"


class Confidence(StrEnum):
    """How a finding was inferred: from recorded shapes, from a launch's size, or with a known reason for doubt."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """What wrote the document."""

    name: str = "stepscope"
    version: str = __version__


class Warning_(msgspec.Struct, frozen=True, kw_only=True):  # noqa: N801 -- `Warning` is Python's own
    """What a reader must know before believing a trace's numbers."""

    code: str
    message: str
    count: int
    is_note: bool
    """Every figure can be believed: this says what they are of, or what else could have been recorded."""


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """Which share of the kernel time could be traced back, and how."""

    with_launch: float | None
    with_op: float | None
    joined: float | None
    """Found in another trace, also where that has no op for them; with method `grid`, read off the launch's size."""
    join_method: str | None
    """`eager-twin`, `capture-launches`, `grid` or null."""
    outside_steps_us: float
    unclassified: float | None


class TraceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One input file."""

    path: str
    bytes: int
    events: int
    rank: int | None
    device: str | None
    complete: bool
    attribution: Attribution
    warnings: list[Warning_]


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The model that shapes were matched with, and how it is served."""

    name: str
    source: str
    """`preset`, the path of its `config.json`, or `server info`."""
    layers: int | None
    """Without multi-token-prediction layers. None: the server told the model's name, but it is not known."""
    tp: int | None
    """Ranks in all; `ep` of them share out the experts, `dp` groups of them attend to requests of their own."""
    ep: int | None = None
    dp: int | None = None
    weights: dict[str, str] | None = None
    """Format by kind of linear layer."""
    kv_dtype: str | None = None
    pool_slots: int | None = None
    """Tokens that the KV pool of one rank holds."""
    page_size: int | None = None
    notes: list[str] = []
    """What was assumed, is not known or contradicts, a sentence each."""


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU whose ceilings were used."""

    name: str
    memory_gb_per_s: float | None
    memory_measured_gb_per_s: float | None
    source: str | None


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Least, median and greatest value over the steady steps."""

    min: float
    median: float
    max: float


class StepSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one phase of one trace."""

    trace: int
    phase: str
    count: int
    steady: int
    batch_size: int | None
    tokens: int | None
    duration_us: Spread
    gpu_span_us: Spread
    gpu_busy_us: float
    """Of the steps that have a duration, so that idle time is of the same steps."""
    gpu_idle_us: float | None
    kernels_per_step: float
    unprofiled_duration_us: float | None = None


class ClassTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one kernel class per step: the union of its intervals."""

    trace: int
    phase: str
    kernel_class: str
    time_us_per_step: float
    share_of_step: float
    calls_per_step: float


class KernelTime(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels that do the same work in every step, and how near they come to the least time of that work.

    An op may launch several kernels; bytes and operations are those of the whole op, and its least time is shared out
    among its kernels by their time. Attention that no op tells of counts as one op a layer, its work from the model.
    """

    trace: int
    phase: str
    kernel: str
    kernel_class: str
    op: str | None
    input_shapes: list[list[int]] | None
    tensor: str | None
    """The weight or cache that it works on."""
    calls_per_step: float
    us_per_call: float
    time_us_per_step: float
    share_of_step: float
    bytes_per_op: float | None
    avoidable_bytes_per_op: float | None
    """Of the bytes, those of pure copies, casts and fills."""
    flops_per_op: float | None
    sent_bytes_per_op: float | None = None
    """Of a collective: bytes that a rank sends to others."""
    floor_us_per_step: float | None
    efficiency: float | None
    """floor / time."""
    bound: str | None
    """What the floor follows from: `memory` (bytes at the memory's rate, or over links), `compute` (operations at the
    matrix units'), or `latency` (of a launch or a collective, which the work itself takes less than)."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A function on the stack; `line` is the one recorded: the function's first, unless it was already running.

    Traces of 2021 recorded the line of the call instead.
    """

    file: str
    line: int
    function: str
    yours: bool = True
    """Whether it is none of torch's or the standard library's."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a finding: a kernel on a tensor."""

    kernel: str
    tensor: str | None
    shape: list[int] | None
    calls_per_step: float
    time_us_per_step: float


class RankArrival(msgspec.Struct, frozen=True, kw_only=True):
    """One rank at the collectives of a step."""

    rank: int
    arrival_us: float
    """How much later than the first rank it arrives: mean over the calls of a step, median of the steps."""
    kernel_us: float
    """How long its kernel takes, in the same manner: transfer and waiting."""


class AtBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What a finding's work takes in the steps of one batch size."""

    batch_size: int
    time_us_per_step: float


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen; the single fields describe the largest of the groups."""

    op: str | None = None
    kernel: str | None = None
    calls_per_step: float | None = None
    us_per_call: float | None = None
    input_shape: list[int] | None = None
    source_dtype: str | None = None
    target_dtype: str | None = None
    bytes_per_call: int | None = None
    bytes_per_step: int | None = None
    achieved_gb_per_s: float | None = None
    bandwidth_fraction: float | None = None
    bandwidth_fraction_measured: float | None = None
    floor_us_per_step: float | None = None
    achieved_tflops: float | None = None
    """Rules about multiplications: operations a call, by its time, in 1e12 a second."""
    blocks: int | None = None
    """`gemm-below-roofline`: thread blocks of the longest kernel."""
    multiprocessors: int | None = None
    """`gemm-below-roofline`: of the GPU (compute units)."""
    tensor: str | None = None
    live_tokens: int | None = None
    live_fraction: float | None = None
    gaps_per_step: float | None = None
    """`launch-bound`: gaps between pieces of GPU work."""
    late_gap_share: float | None = None
    """`launch-bound`: share of the gaps, counted, that end right after a launch."""
    ranks: list[RankArrival] = []
    """`rank-skew`: the ranks that were compared."""
    late_ranks: list[int] | None = None
    """`rank-skew`: those that arrive after the median."""
    transfer_us: float | None = None
    """How long a collective takes once all ranks are there: its shortest kernel of all ranks."""
    best_known_us: float | None = None
    """`slow-collective`: the least that a kernel was measured to take for so many bytes."""
    clock_residual_us: float | None = None
    """How far apart ends of the same collectives lie, once the ranks' clocks are aligned by them: median."""
    replayed_trace: int | None = None
    """Of a finding across ranks: the trace whose steps the what-if is of."""
    host_call: str | None = None
    """Rules about the host: the call of the runtime that the largest of the groups makes."""
    wait_us_per_step: float | None = None
    """`hidden-sync`: how long the host waits in those calls. No loss in itself: the GPU is at work meanwhile."""
    groups: list[Group] = []
    by_batch: list[AtBatch] = []
    """What this work takes at several batch sizes, ascending, where steps of several are at hand."""
    modules: list[str] = []
    """The modules around the op, outermost first: class and number of the instance."""
    layers: list[int] = []
    """The layers that the groups run in, where their numbers are certain."""
    frames: list[Frame] = []
    statement: str | None = None
    statement_at: str | None = None


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction: never one number without its uncertainty."""

    low: float
    expected: float
    high: float


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The step predicted without the cause, on the trace's own clock."""

    step_us: Range
    gpu_span_us: Range
    unprofiled_step_us: float | None
    gain_fraction: float
    gain_fraction_others_fixed: float
    step_us_others_fixed: float
    hidden_by: list[str]
    assumption: str


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """The step once this is fixed, and all that stands before it in the ladder of its phase."""

    trace: int
    phase: str
    fixed: str
    """A rule, or what was asked for."""
    step_us: float
    gpu_span_us: float
    gain_fraction: float
    """Of today's step, by everything fixed so far."""


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do about it, the easiest first."""

    what: str
    kind: str
    """`configuration` or `code`."""
    where: str | None = None
    needs: str | None = None
    expected_step_us: float | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A diagnosed cause."""

    rule: str
    trace: int | None
    phase: str
    severity: Severity
    confidence: Confidence
    title: str
    notes: list[str]
    """What else must be known about it, a sentence each."""
    time_us_per_step: float
    share_of_step: float
    evidence: Evidence
    what_if: WhatIf | None
    control: str
    fix: list[Fix]


class RuledOut(msgspec.Struct, frozen=True, kw_only=True):
    """A usual suspect that is not the cause, or of which that cannot be told."""

    trace: int | None
    """None: several ranks show it."""
    phase: str
    hypothesis: str
    rule: str | None = None
    """The rule that looked for it and found nothing; None of suspects that are judged by their time."""
    time_us_per_step: float | None
    """Of what was looked at; of a rule's kernels those that no finding is about."""
    share_of_step: float | None
    reason: str
    undecided: bool = False
    """Whether the trace does not tell that it is not the cause; the reason says what is missing."""


class CouldNotCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What the trace cannot answer, and how to record one that can."""

    rule: str
    trace: int | None
    """None: it concerns several ranks."""
    missing: str
    how_to_capture: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document."""

    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    traces: list[TraceInfo]
    model: Model | None
    hardware: Hardware | None
    steps: list[StepSummary]
    breakdown: list[ClassTime]
    kernels: list[KernelTime]
    """Those of at least 0.5% of a phase's kernel time, longest first."""
    findings: list[Finding]
    ladder: list[Rung]
    """The findings above info fixed one after another, in their order, for each trace and phase."""
    ruled_out: list[RuledOut]
    could_not_check: list[CouldNotCheck]
