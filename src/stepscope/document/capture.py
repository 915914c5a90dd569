"""What a capture from a live server brought, as typed structs: what `stepscope capture --format json` prints."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from stepscope.document.diagnosis import SCHEMA_VERSION, Diagnosis, Spread, Tool


class TraceKind(StrEnum):
    """Whose trace a file is."""

    WORKER = "worker"
    """A rank's: the steps."""
    FRONT_END = "front-end"
    """That of the process that answers HTTP: no steps in it."""
    MERGED = "merged"
    """All ranks in one file, beside those of the ranks."""


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the server tells about itself; null: it does not, and `not_told` names it."""

    server: str
    url: str
    version: str | None
    model: str | None
    """A folder, or a name on a hub."""
    tp: int | None
    ep: int | None
    dp: int | None
    pp: int | None
    ranks: int | None
    """Processes that write a trace each."""
    kv_cache_dtype: str | None
    pool_slots: int | None
    """Tokens that the KV pool of one rank holds."""
    page_size: int | None
    attention_backend: str | None
    graphs: bool | None
    """Whether steps are replayed as CUDA graphs."""
    context_length: int | None
    """Tokens that a request may have, the new ones included."""
    not_told: list[str]


class Unrecorded(msgspec.Struct, frozen=True, kw_only=True):
    """What the server does not record as it was started."""

    code: str
    message: str
    restart: str | None
    """The line that starts a server which would."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What clients saw in a stretch of time."""

    duration_us: float
    requests: int
    """Prompts whose first token came in it."""
    first_token_us: Spread | None
    """From sending a prompt to its first token."""
    between_tokens_us: Spread | None
    """Time a token of a request, after its first; null: none came, or they came in bursts, as under load."""
    tokens_per_s: float
    """New tokens of all requests."""
    prompt_tokens_per_s: float


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """The load that was held, and what the profiler cost it."""

    phase: str
    batch: int
    context: int
    """Tokens of a prompt."""
    live_tokens: int | None
    """Of a request while the profiler ran: its prompt and the new tokens until then, median."""
    settled: bool
    """Whether step times had settled before anything was measured."""
    unprofiled: Served
    profiled: Served | None
    """While the profiler ran; null: too few tokens came for a figure."""
    profiler_overhead: float | None
    """profiled / unprofiled − 1, of the medians: between tokens, or to the first one where nothing is decoded."""


class CapturedTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the server wrote."""

    path: str
    bytes: int
    rank: int | None
    kind: TraceKind
    whole: bool
    """Its compressed data and its list of events end as they should."""


class CaptureProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Why what came back does not pass, and what to change."""

    code: str
    message: str
    change: str


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document."""

    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    server: ServerFacts
    folder: str
    server_info: str
    """File for `stepscope diagnose --server-info`."""
    will_not_record: list[Unrecorded]
    traffic: Traffic
    traces: list[CapturedTrace]
    notes: list[str]
    """What else must be known, a sentence each."""
    problems: list[CaptureProblem]
    """Empty: the traces passed the quality gate."""
    diagnose: str
    """The command that diagnoses the traces."""
    eager: Capture | None = None
    """`--two-pass`: the same from the server without graphs."""
    diagnosis: Diagnosis | None = None
    """With `--diagnose`."""
