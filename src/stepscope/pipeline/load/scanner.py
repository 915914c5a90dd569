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
DEPTH_LIMIT = 32
"""No event is nested this deeply; what seems to be has lost brackets."""

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_EVENT = rb'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"'
_BEGINS_EVENT = re.compile(rb"\s*" + _EVENT)
_NEXT_EVENT = re.compile(rb",\s*(?=" + _EVENT + rb")")
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_BLANK = b" \t\r\n,"
_OBJECT, _END_OF_OBJECT, _LIST, _COLON = b"{}[:"
_OPENING = {ord("}"): ord("{"), ord("]"): ord("[")}
_ANOTHER_EVENT = re.compile(rb'\s*\}?\s*(?:,\s*\{\s*"|,?\s*"ph"\s*:|' + _EVENT + rb")")
"""What cannot follow the last bracket of the events' array."""
_LOOK_AHEAD_BYTES = 64


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the first event, up to and including the array's opening bracket."""

    text: bytes


@dataclass(frozen=True, slots=True)
class Trailer:
    """What follows the events' array, the first 4 MB; `complete` is False where the file ends before the array does."""

    text: bytes
    complete: bool
    odd_commas: int = 0
    """Places between events, as far as they were looked at, where a comma is missing or one too many."""


@dataclass(slots=True)
class Split:
    """Events found by counting brackets, good or not, where the rest begins, and whether the array ended there."""

    events: list[bytes]
    rest: int = 0
    ended: bool = False
    stray: int = 0
    """Places between events that hold something else."""
    odd_commas: int = 0


class Sink(Protocol):
    """Takes the events."""

    def take(self, text: bytes) -> bool:
        """Keep comma-separated events; keep nothing and return False where the text is not a list of whole events."""

    def take_each(self, events: list[bytes]) -> None:
        """Keep those of the events that can be decoded, and count the others."""

    def reject(self) -> None:
        """Count an event that has no end, or text between events."""


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
    odd_commas = 0
    for block in blocks:
        buffer += block
        if len(buffer) < enough:
            continue
        cut = _last_boundary(buffer)
        if cut is not None and sink.take(buffer[:cut]):
            buffer = buffer[cut:].lstrip(_BLANK)
            enough = CHUNK_BYTES
            continue
        split = split_events(buffer, more_follows=True)
        buffer, ended, odd_commas = _take_one_by_one(buffer, split, sink), split.ended, odd_commas + split.odd_commas
        if ended:
            break
        enough = max(CHUNK_BYTES, min(2 * len(buffer), EVENT_LIMIT_BYTES + 1))  # a large event is not read many times
        if len(buffer) > EVENT_LIMIT_BYTES:  # no event is this large: a quote or bracket is missing, so resume later
            buffer = _after_damage(buffer, sink) or b""
    rest: bytes | None = buffer
    while not ended and rest is not None:
        split = split_events(rest)
        buffer, ended, odd_commas = _take_one_by_one(rest, split, sink), split.ended, odd_commas + split.odd_commas
        rest = None if ended else _after_damage(buffer, sink)
    yield Trailer(_read_trailer(buffer, blocks) if ended else b"", complete=ended, odd_commas=odd_commas)


def split_events(text: bytes, *, more_follows: bool = False) -> Split:
    """Count brackets to find the events at the start of `text`.

    Where brackets do not match, an event is damaged: it is handed on up to where the next one seems to begin.

    Args:
        text: events, and perhaps what follows them.
        more_follows: whether the text goes on, so that what follows a last bracket is not known.
    """
    split = Split([])
    position: int | None = 0
    while position is not None:
        position = _split_until_damage(text, position, split, more_follows=more_follows)
    return split


def _split_until_damage(  # noqa: C901, PLR0912 -- one loop over brackets, a branch a case
    text: bytes, position: int, split: Split, *, more_follows: bool
) -> int | None:
    """Add events to `split`; return where to go on after a damaged one, None at the end."""
    open_brackets = bytearray()
    previous_end = position
    for token in _TOKEN.finditer(text, position):
        at = token.start()
        symbol = text[at]
        if symbol in b"{[":
            if not open_brackets:
                if symbol == _LIST and _BEGINS_EVENT.match(text, at + 1):
                    continue  # one bracket too many
                _look_between(text[previous_end:at], split)
                split.rest = at
            elif not _may_open(text, at, open_brackets):
                break
            open_brackets.append(symbol)
        elif symbol in b"}]":
            if not open_brackets:
                if symbol == _END_OF_OBJECT or _ANOTHER_EVENT.match(text, at + 1):
                    continue  # one bracket too many
                if not more_follows or len(text) - at >= _LOOK_AHEAD_BYTES:
                    _look_between(text[previous_end:at], split, comma=b"")
                    split.rest, split.ended = at + 1, True
                return None
            if _OPENING[symbol] != open_brackets.pop():
                break
            if not open_brackets:
                split.events.append(text[split.rest : at + 1])
                split.rest = previous_end = at + 1
    else:
        return None
    resume = _NEXT_EVENT.search(text, split.rest + 1)
    if resume is None:
        return None
    split.events.append(text[split.rest : resume.start()])
    split.rest = resume.start()
    return split.rest


def _look_between(text: bytes, split: Split, comma: bytes = b",") -> None:
    """Count what stands between two events, or after the last one, if it is anything but a comma, or no comma."""
    if text.strip(_BLANK):
        split.stray += 1
    elif split.events and text.strip() != comma:
        split.odd_commas += 1


def _may_open(text: bytes, at: int, open_brackets: bytearray) -> bool:
    """Tell whether a bracket may open there: a colon must precede it in an object, and nothing is nested for ever."""
    while text[at - 1] in b" \t\r\n":
        at -= 1
    return len(open_brackets) < DEPTH_LIMIT and (open_brackets[-1] != _OBJECT or text[at - 1] == _COLON)


def _take_one_by_one(text: bytes, split: Split, sink: Sink) -> bytes:
    """Take the events that were found and return the rest."""
    if split.events:
        sink.take_each(split.events)
    for _ in range(split.stray):
        sink.reject()
    return text[split.rest :].lstrip(_BLANK)


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
