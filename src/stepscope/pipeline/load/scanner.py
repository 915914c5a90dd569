"""Cuts a stream of JSON into its header, chunks of whole trace events, and its trailer.

The document is never held whole. The fast path cuts at the last `}, {` of a block and lets the decoder decide
whether the cut was between events: a wrong cut leaves brackets open, so it cannot decode. Only then the brackets
are counted one by one (`split_events`), which also steps over what is damaged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES = 1 << 20
HEADER_LIMIT_BYTES = 16 << 20
TRAILER_LIMIT_BYTES = 4 << 20
EVENT_LIMIT_BYTES = 32 << 20

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_NEXT_EVENT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)")')
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_BLANK = b" \t\r\n,"


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the first event, up to and including the array's opening bracket."""

    text: bytes


@dataclass(frozen=True, slots=True)
class Trailer:
    """What follows the events' array, the first 4 MB; `complete` is False where the file ends before the array does."""

    text: bytes
    complete: bool


@dataclass(frozen=True, slots=True)
class Split:
    """Events found by counting brackets: whole events, where the rest begins, and whether the array ended there."""

    events: list[bytes]
    rest: int
    ended: bool


class Sink(Protocol):
    """Takes the events."""

    def take(self, text: bytes) -> bool:
        """Keep comma-separated events; keep nothing and return False where the text is not a list of whole events."""

    def take_each(self, events: list[bytes]) -> None:
        """Keep those of the events that can be decoded, and count the others."""

    def reject(self) -> None:
        """Count an event that has no end."""


class MissingEventsError(Exception):
    """The document has no array of trace events; `text` is what was read of it."""

    def __init__(self, text: bytes) -> None:
        super().__init__("no traceEvents")
        self.text = text


def scan(blocks: Iterator[bytes], sink: Sink) -> Iterator[Header | Trailer]:
    """Feed the events of a document, given as blocks of its text, to `sink`; yield its header first, its trailer last.

    Raises:
        MissingEventsError: no array of events within the first 16 MB.
    """
    header, buffer = _read_header(blocks)
    yield Header(header)
    ended = False
    enough = CHUNK_BYTES
    for block in blocks:
        buffer += block
        if len(buffer) < enough:
            continue
        cut = _last_boundary(buffer)
        if cut is not None and sink.take(buffer[:cut]):
            buffer = buffer[cut:].lstrip(_BLANK)
            enough = CHUNK_BYTES
            continue
        buffer, ended = _take_one_by_one(buffer, sink)
        if ended:
            break
        enough = max(CHUNK_BYTES, min(2 * len(buffer), EVENT_LIMIT_BYTES + 1))  # a large event is not read many times
        if len(buffer) > EVENT_LIMIT_BYTES:  # no event is this large: a quote or bracket is missing, so resume later
            buffer = _after_damage(buffer, sink) or b""
    if not ended:
        buffer, ended = _take_one_by_one(buffer, sink)
    while not ended and (rest := _after_damage(buffer, sink)):
        buffer, ended = _take_one_by_one(rest, sink)
    yield Trailer(_read_trailer(buffer, blocks) if ended else b"", complete=ended)


def split_events(text: bytes) -> Split:
    """Count brackets to find the whole events at the start of `text`."""
    events: list[bytes] = []
    depth = 0
    start = 0
    for token in _TOKEN.finditer(text):
        symbol = text[token.start()]
        if symbol in b"{[":
            if depth == 0:
                start = token.start()
            depth += 1
        elif symbol in b"}]":
            if depth == 0:
                return Split(events, token.end(), ended=True)
            depth -= 1
            if depth == 0:
                events.append(text[start : token.end()])
                start = token.end()
    return Split(events, start, ended=False)


def _take_one_by_one(text: bytes, sink: Sink) -> tuple[bytes, bool]:
    split = split_events(text)
    if split.events:
        sink.take_each(split.events)
    return text[split.rest :].lstrip(_BLANK), split.ended


def _after_damage(text: bytes, sink: Sink) -> bytes | None:
    """Give up the event that `text` begins with, whose end cannot be told; return the text from the next event on."""
    resume = _NEXT_EVENT.search(text, 1)
    if resume is None:
        return None
    sink.reject()
    return text[resume.end() :]


def _last_boundary(text: bytes) -> int | None:
    """Return the end of the last `}` that a comma and another `{` follow."""
    position = len(text)
    while (position := text.rfind(b"}", 0, position)) > 0:
        if _BOUNDARY.match(text, position):
            return position + 1
    return None


def _read_trailer(buffer: bytes, blocks: Iterator[bytes]) -> bytes:
    """Return the beginning of what follows the events; all is read, since damage may be found there."""
    for block in blocks:
        if len(buffer) < TRAILER_LIMIT_BYTES:
            buffer += block
    return buffer


def _read_header(blocks: Iterator[bytes]) -> tuple[bytes, bytes]:
    buffer = b""
    for block in blocks:
        buffer = (buffer + block).removeprefix(b"\xef\xbb\xbf")
        text = buffer.lstrip()
        if text.startswith(b"["):
            return b"[", text[1:]
        found = _EVENTS_KEY.search(buffer)
        if found:
            return buffer[: found.end()], buffer[found.end() :]
        if len(buffer) > HEADER_LIMIT_BYTES:
            break
    raise MissingEventsError(buffer)
