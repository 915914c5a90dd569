"""The environment that a server really runs in, as typed structs: what `stepscope probe --format json` prints."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from stepscope.document.diagnosis import SCHEMA_VERSION, Tool


class DeterminedBy(StrEnum):
    """How an answer was come by."""

    BACKEND_CODE = "backend code"
    """The installed source of the engine's backend."""
    LIBRARY_CODE = "library code"
    """The installed source of the library whose kernel it calls."""
    SIGNATURE = "signature"
    """The parameters of a function of that library."""
    VERSION_TABLE = "version table"
    """stepscope's own table, which names its source."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """The process that was asked about, or the interpreter alone."""

    asked: str
    pid: int | None
    python: str
    """As the process sees it."""
    python_found_by: str
    root: str | None
    """Where its file system lies for others; null: it is this machine's."""
    cwd: str | None
    arguments: dict[str, str]
    """Options of its command line that choose the model, the attention backend and the KV cache's type."""


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """An installed distribution, or a package that is imported without one."""

    name: str
    version: str | None
    """That of the distribution's metadata."""
    source_version: str | None
    """What the source that is imported says of itself."""
    path: str | None
    """The folder that an import finds."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that the process can use."""

    name: str
    compute_capability: str
    memory_bytes: int | None


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreter, and what its packages were built for."""

    version: str
    executable: str
    prefix: str
    """The virtual environment, if it is one."""
    torch_cuda: str | None
    """The CUDA version that torch was built for; null: for none, or there is no torch."""
    torch_hip: str | None
    driver_cuda: str | None
    """The newest CUDA version that the driver supports."""
    was_run: bool
    """False: its files were only read, so that nothing is known of GPUs."""


class HeadSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The head sizes of the model's attention, in elements."""

    model: str
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, how it was come by, and where that can be read."""

    answer: bool | None
    """Null: it cannot be told; `reason` says why."""
    reason: str
    determined_by: DeterminedBy | None
    at: str | None
    """`file:line` or an address."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a backend's source."""

    file: str
    line: int
    end_line: int
    """Last line of the arguments that matter: of the cast's, or of the types that `plan()` is given."""
    function: str
    statement: str
    phases: list[str]
    """`decode`, `extend`: which of the backend's methods come there; none: neither can be told."""
    given: str
    """The type, as an expression of the source."""
    is_certain: bool
    """Whether it is known to be what the verdict speaks of."""
    conditions: list[str]
    """What must hold on the way there."""


class MlaBackend(msgspec.Struct, frozen=True, kw_only=True):
    """One attention backend for MLA."""

    engine: str
    name: str
    """As the engine's option calls it."""
    cls: str = msgspec.field(name="class")
    file: str
    is_chosen: bool | None
    """Whether the command line names it; null: it names none, or there is none to read."""
    fp8_kv: Answer
    """Whether it reads an FP8 KV pool as it lies, with queries of 16 bits, on this GPU."""
    pool_cast: Answer
    """Whether its source casts the whole pool."""
    pool_cast_sites: list[Site]
    plan_dtype: Answer | None
    """Whether `plan()` is given the queries' type for `kv_data_type`; null: it calls no `plan()` of an MLA wrapper."""
    plan_sites: list[Site]
    head_sizes: Answer | None
    """Whether it takes the model's head sizes; null: no model was named."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What runs a server: interpreter, versions, GPUs, and its attention backends for MLA."""

    schema_version: int = SCHEMA_VERSION
    tool: Tool = msgspec.field(default_factory=Tool)
    server: Server
    interpreter: Interpreter
    packages: list[Package]
    gpus: list[Gpu]
    model: HeadSizes | None
    backends: list[MlaBackend]
    notes: list[str]
    """What must be known besides, a sentence each."""
