"""What a capture asks of a server: one file a kind of server speaks its protocol behind this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from stepscope.document import ServerFacts, TraceKind, Unrecorded


@dataclass(frozen=True, slots=True)
class Told:
    """What the server says before anything is asked of it."""

    facts: ServerFacts
    server_info: bytes
    """For `--server-info`, without secrets."""
    unrecorded: Sequence[Unrecorded]
    """What it will not record as it was started."""
    trace_folder: Path | None
    """Where it writes traces, as far as it or its process tells."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What is to be recorded."""

    folder: str
    """Where the server is to write, as it names it; one that was told so when it was started writes there."""
    steps: int
    stacks: bool


@dataclass(frozen=True, slots=True)
class TraceName:
    """What a file's name tells."""

    kind: TraceKind
    rank: str | None
    """What tells it from the other ranks'."""
    number: int | None = None
    """Of the rank."""


class Server(Protocol):
    """A server that can be profiled."""

    name: str
    stops_itself: bool
    """A recording ends after the steps that were asked for."""
    front_end_records: bool
    """The process that answers HTTP records too, until it is told to stop."""
    guard_steps: int
    """Steps to ask for beyond those wanted."""

    async def describe(self) -> Told:
        """Return what the server tells about itself, or raise DeviceError where it cannot be captured from."""

    def generate(self, prompt: Sequence[int], new_tokens: int) -> AbstractAsyncContextManager[AsyncIterator[int]]:
        """Send a prompt and yield the number of new tokens so far, each time that some came."""

    async def start_profile(self, recording: Recording, timeout_s: float) -> None:
        """Begin to record."""

    async def stop_profile(self, timeout_s: float) -> None:
        """End the recording; files may come later."""

    def trace_name(self, name: str) -> TraceName | None:
        """Return what a file's name tells; None: it is no trace of this server."""
