"""The scanner: where the text is cut must not matter, and damage costs no more than what it damages."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from stepscope.pipeline.load import scanner
from stepscope.pipeline.load.scanner import Header, MissingEventsError, Trailer, scan, split_events

if TYPE_CHECKING:
    from collections.abc import Iterator

EVENTS: list[dict[str, Any]] = [
    {"ph": "X", "name": "plain", "ts": 1, "dur": 2},
    {"ph": "X", "name": 'braces } , { and ]} and \\"quotes\\" "', "args": {"a": [{"b": 1}, {"c": {}}], "d": "},{"}},
    {"ph": "M", "name": "back\\slash\\", "args": {}},
    {"ph": "X", "name": "µs → \u0007 \u2028", "args": {"Input Dims": [[1, 2], [], [[3], [4]]]}},
    {"ph": "i", "name": ""},
]
TRAILER: dict[str, Any] = {"after": [{"x": 1}, {"y": "]"}], "traceName": "a}, {b"}


class Kept:
    """Takes what `json` can read, as a list of objects, and nothing else."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.rejected = 0

    def take(self, text: bytes) -> bool:
        try:
            events = json.loads(b"[" + text + b"]")
        except ValueError:
            return False
        if not all(isinstance(event, dict) and "ph" in event for event in events):
            return False
        self.events += events
        return True

    def take_each(self, events: list[bytes]) -> None:
        self.rejected += sum(not self.take(event) for event in events)

    def reject(self) -> None:
        self.rejected += 1


def blocks(text: bytes, size: int) -> Iterator[bytes]:
    return (text[start : start + size] for start in range(0, len(text), size))


def scanned(text: bytes, size: int = 1 << 20) -> tuple[Kept, bytes, Trailer]:
    """Scan a text given in blocks of a size; return the events, the header and the trailer."""
    kept = Kept()
    header, trailer = scan(blocks(text, size), kept)
    assert isinstance(header, Header)
    assert isinstance(trailer, Trailer)
    return kept, header.text, trailer


LAYOUTS = {
    "compact": json.dumps({"before": 1, "traceEvents": EVENTS, **TRAILER}, separators=(",", ":")),
    "default": json.dumps({"before": [{"deep": [1]}], "traceEvents": EVENTS, **TRAILER}),
    "indented": json.dumps({"traceEvents": EVENTS, **TRAILER}, indent=2),
    "non-ascii": json.dumps({"traceEvents": EVENTS, **TRAILER}, ensure_ascii=False),
    "windows lines": json.dumps({"traceEvents": EVENTS}, indent=1).replace("\n", "\r\n"),
    "no keys but events": json.dumps({"traceEvents": EVENTS}),
    "a list": json.dumps(EVENTS),
    "a list, indented": "\n " + json.dumps(EVENTS, indent=4) + "\n",
    "a mark of order": "\ufeff" + json.dumps(EVENTS),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunk", [1, 40, 300, 1 << 20])
def test_block_and_chunk_sizes_do_not_matter(layout: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "CHUNK_BYTES", chunk)
    text = LAYOUTS[layout].encode()
    for size in range(1, len(text) + 1):
        kept, _, trailer = scanned(text, size)
        assert (kept.events, kept.rejected, trailer.complete) == (EVENTS, 0, True), f"blocks of {size} bytes"


@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_two_blocks_cut_anywhere_give_the_same(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "CHUNK_BYTES", chunk)
    text = LAYOUTS["default"].encode()
    for cut in range(len(text) + 1):
        kept = Kept()
        list(scan(iter((text[:cut], text[cut:])), kept))
        assert (kept.events, kept.rejected) == (EVENTS, 0), f"cut at byte {cut}"


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_keys_on_both_sides_of_the_events_are_handed_on(size: int) -> None:
    _, header, trailer = scanned(LAYOUTS["default"].encode(), size)
    assert json.loads(header + b"]}") == {"before": [{"deep": [1]}], "traceEvents": []}
    assert json.loads(b"{" + trailer.text.strip().removeprefix(b",")) == TRAILER


def test_every_cut_keeps_the_whole_events_before_it() -> None:
    text = json.dumps({"traceEvents": EVENTS}).encode()
    start = text.index(b"[") + 1
    ends = [start + len(json.dumps(EVENTS[: count + 1])) - 2 for count in range(len(EVENTS))]
    for cut in range(start, text.rindex(b"]")):
        kept, _, trailer = scanned(text[:cut])
        whole = sum(end <= cut for end in ends)
        assert (kept.events, kept.rejected) == (EVENTS[:whole], 0), f"cut at byte {cut}"
        assert not trailer.complete


BAD_EVENTS = {
    "not a number": b'{"ph": "X", "ts": NaN2}',
    "a control character": b'{"ph": "X", "name": "a\x01b"}',
    "a bad escape": rb'{"ph": "X", "name": "C:\Users\x"}',
    "unescaped quotes": b'{"ph": "X", "name": "the "best" kernel"}',
    "a missing value": b'{"ph": "X", "ts": , "dur": 1}',
    "no ph": b'{"name": "x"}',
}


@pytest.mark.parametrize("chunk", [1, 1 << 20])
@pytest.mark.parametrize("damage", BAD_EVENTS)
@pytest.mark.parametrize("at", [0, 2, 4])
def test_one_bad_event_costs_that_event_only(damage: str, at: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "CHUNK_BYTES", chunk)
    texts = [json.dumps(event).encode() for event in EVENTS]
    texts.insert(at, BAD_EVENTS[damage])
    text = b'{"traceEvents": [' + b", ".join(texts) + b"]}"
    for size in (1, 50, len(text)):
        kept, _, _ = scanned(text, size)
        assert kept.events == EVENTS, f"blocks of {size} bytes"
        assert kept.rejected == 1


def test_a_last_event_without_an_end_looks_like_a_cut() -> None:
    text = json.dumps({"traceEvents": EVENTS}).encode().removesuffix(b"]}") + b', {"ph": "X", "name": "a 5" disk"}]}'
    kept, _, trailer = scanned(text)
    assert (kept.events, trailer.complete) == (EVENTS, False)


STRAY_QUOTE = b'{"ph": "X", "name": "a 5" disk"}'
BALANCED = [event for event in EVENTS if "braces" not in event["name"]]
"""After a stray quote names read as structure, so the events behind it are found only if their brackets match."""


@pytest.mark.parametrize("at", [0, 1, 7])
def test_a_stray_quote_costs_one_event(at: int) -> None:
    many = BALANCED * 3 + [{"ph": "X", "name": "kernel<f[2]>::{lambda()#1}", "args": {"grid": [1, 1, 1]}}]
    texts = [json.dumps(event).encode() for event in many]
    texts.insert(at, STRAY_QUOTE)
    kept, _, trailer = scanned(b'{"traceEvents": [' + b", ".join(texts) + b'], "k": 1}')
    assert (kept.events, kept.rejected, trailer.complete) == (many, 1, True)


def test_an_event_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "CHUNK_BYTES", 64)
    monkeypatch.setattr(scanner, "EVENT_LIMIT_BYTES", 1024)
    many = BALANCED * 60
    texts = [json.dumps(event).encode() for event in many]
    texts.insert(3, STRAY_QUOTE)
    kept, _, trailer = scanned(b'{"traceEvents": [' + b", ".join(texts) + b"]}", 64)
    assert (kept.events, kept.rejected, trailer.complete) == (many, 1, True)


def test_a_doubled_comma_costs_nothing() -> None:
    text = b'{"traceEvents": [{"ph": "X"}, , {"ph": "M"},,{"ph": "i"},]}'
    kept, _, trailer = scanned(text)
    assert [event["ph"] for event in kept.events] == ["X", "M", "i"]
    assert (kept.rejected, trailer.complete) == (0, True)


@pytest.mark.parametrize("text", [b'{"nodes": [1]}', b"{}", b'{"traceEvents": 3}'])
def test_a_document_without_events_says_what_was_read(text: bytes) -> None:
    with pytest.raises(MissingEventsError) as caught:
        list(scan(blocks(text, 2), Kept()))
    assert caught.value.text == text


def test_a_header_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "HEADER_LIMIT_BYTES", 100)
    read = []

    def endless() -> Iterator[bytes]:
        yield b'{"a": "'
        while True:
            read.append(1)
            yield b"x" * 10

    with pytest.raises(MissingEventsError):
        list(scan(endless(), Kept()))
    assert len(read) <= 11


def test_split_counts_brackets_outside_strings_only() -> None:
    text = rb'{"a": "}"}, {"b": [{"c": "\\"}, {}]} , {"d": "\"]'
    split = split_events(text)
    assert split.events == [rb'{"a": "}"}', rb'{"b": [{"c": "\\"}, {}]}']
    assert text[split.rest :] == rb'{"d": "\"]'
    assert not split.ended


@pytest.mark.parametrize(
    ("text", "events", "stray", "odd_commas"),
    [
        (b'{"a": 1}, {"b": 2}]', [b'{"a": 1}', b'{"b": 2}'], 0, 0),
        (b'{"a": 1} , , {"b": 2}]', [b'{"a": 1}', b'{"b": 2}'], 0, 1),
        (b'{"a": 1} {"b": 2},]', [b'{"a": 1}', b'{"b": 2}'], 0, 2),
        (b'{"a": 1}}, x {"b": 2} y]', [b'{"a": 1}', b'{"b": 2}'], 2, 0),
        (b'{"a": 1}], {"b": 2}]', [b'{"a": 1}', b'{"b": 2}'], 1, 0),
        (b'{"a": [1}, {"ph": 2}]', [b'{"a": [1}', b'{"ph": 2}'], 0, 0),
        (b'{"a": [1], {"ph": 2}]', [b'{"a": [1]', b'{"ph": 2}'], 0, 0),
        (b'{"a": {"b": 1}, {"ph": 2}]', [b'{"a": {"b": 1}', b'{"ph": 2}'], 0, 0),
    ],
)
def test_what_is_wrong_between_events_is_counted(text: bytes, events: list[bytes], stray: int, odd_commas: int) -> None:
    split = split_events(text)
    assert (split.events, split.stray, split.odd_commas, split.ended) == (events, stray, odd_commas, True)


def test_a_last_bracket_is_looked_at_with_what_follows_it() -> None:
    """It may be one too many; where the text goes on, that is not known before it has come."""
    assert split_events(b'{"a": 1}]').ended
    split = split_events(b'{"a": 1}]', more_follows=True)
    assert (split.events, split.rest, split.ended) == ([b'{"a": 1}'], 8, False)
    assert split_events(b'{"a": 1}]' + b" " * 64, more_follows=True).ended
    assert split_events(b'{"a": 1}], "traceName": "' + b"x" * 64, more_follows=True).ended


@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_a_second_document_is_no_damage(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "CHUNK_BYTES", chunk)
    for text in (LAYOUTS["default"] * 2, LAYOUTS["a list"] * 2, LAYOUTS["a list"] + LAYOUTS["compact"]):
        for size in (1, 50, len(text)):
            kept, _, trailer = scanned(text.encode(), size)
            assert (kept.events, kept.rejected, trailer.complete, trailer.odd_commas) == (EVENTS, 0, True, 0)


def test_a_trailer_of_any_size_is_read_and_not_held() -> None:
    endless = (b"," * (1 << 20) for _ in range(50))
    parts = list(scan(chain([b'[{"ph": "X"}]'], endless), Kept()))
    trailer = parts[-1]
    assert isinstance(trailer, Trailer)
    assert len(trailer.text) <= 6 << 20
    assert next(endless, None) is None
