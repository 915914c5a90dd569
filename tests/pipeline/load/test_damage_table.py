"""Every kind of damage, one a row: how it is made, what is told of it, and which events survive it."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from stepscope import diagnose, load
from stepscope.pipeline.load import scanner, source

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 30
HURT = 11
"""The event that is damaged."""


def event(number: int, **keys: Any) -> str:
    """Return a kernel of 4 µs, one every 10 µs."""
    args = {"device": 0, "stream": 7, "grid": [1, 2, 3]}
    times = {"ts": 100 + number * 10, "dur": 4}
    return json.dumps(
        {"ph": "X", "cat": "kernel", "name": f"k{number}", "pid": 0, "tid": 7, **times, "args": args} | keys
    )


EVENTS = [event(number) for number in range(COUNT)]
BEFORE = '{"schemaVersion": 1, "traceEvents": ['
AFTER = '], "traceName": "t"}'


def document(events: list[str]) -> str:
    return BEFORE + ", ".join(events) + '], "traceName": "t"}'


TEXT = document(EVENTS)
CUT = TEXT.index(EVENTS[HURT]) + 50
"""A place in the middle of an event."""


def hurt(old: str, new: str) -> bytes:
    """Change one event."""
    assert old in EVENTS[HURT]
    return document([*EVENTS[:HURT], EVENTS[HURT].replace(old, new, 1), *EVENTS[HURT + 1 :]]).encode()


def between(text: str) -> bytes:
    """Put a text in place of the comma before an event."""
    return (BEFORE + ", ".join(EVENTS[:HURT]) + text + document(EVENTS[HURT:]).removeprefix(BEFORE)).encode()


def gzip_cut() -> bytes:
    """Stored without compression, so that the cut is at a byte that is known: 10 of header, 5 of the block's."""
    return gzip.compress(TEXT.encode(), 0, mtime=0)[: 15 + CUT]


def gzip_with_a_bad_block() -> bytes:
    """Two blocks; the second, of type 3, does not exist. The event before it is longer than what is lost with it."""
    packer = zlib.compressobj(wbits=31)
    text = hurt("k11", random.Random(1).randbytes(8_000).hex())  # noqa: S311 -- hard to compress, the same in every run
    cut = text.index(b'", "pid"', CUT)
    first = packer.compress(text[:cut]) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + b"\x07" + packer.compress(text[cut:]) + packer.flush()


class Row(NamedTuple):
    """What becomes of a file; `lost` are the numbers of the events that do not survive."""

    content: bytes
    warnings: dict[str, int]
    lost: set[int]


ALL_AFTER = set(range(HURT, COUNT))
ONE_LOST: tuple[dict[str, int], set[int]] = ({"damaged-events": 1}, {HURT})
LARGE = json.dumps(["x" * 1000] * 10_000)

TABLE = {
    "healthy": Row(TEXT.encode(), {}, set()),
    # the file ends or goes on
    "truncated json": Row(TEXT[:CUT].encode(), {"cut-file": 1}, ALL_AFTER),
    "truncated between events": Row(document(EVENTS[:HURT]).removesuffix(AFTER).encode(), {"cut-file": 1}, ALL_AFTER),
    "truncated gz": Row(gzip_cut(), {"damaged-compression": 1, "cut-file": 1}, ALL_AFTER),
    "corrupt gz block": Row(gzip_with_a_bad_block(), {"damaged-compression": 1, "cut-file": 1}, ALL_AFTER),
    "two documents": Row(f"{TEXT}{TEXT}".encode(), {"second-trace": 1}, set()),
    "two documents on two lines": Row(f"{TEXT}\n{TEXT}\n".encode(), {"second-trace": 1}, set()),
    "two lists": Row(f"[{', '.join(EVENTS)}]".encode() * 2, {"second-trace": 1}, set()),
    # text within an event
    "unescaped quote": Row(hurt("k11", 'a 5" disk'), *ONE_LOST),
    "unescaped quotes": Row(hurt("k11", 'the "best" kernel'), *ONE_LOST),
    "bad escape": Row(hurt("k11", r"C:\Users\x"), *ONE_LOST),
    "bad unicode escape": Row(hurt("k11", r"\u12"), *ONE_LOST),
    "half a surrogate pair": Row(hurt("k11", r"\ud800"), *ONE_LOST),
    "raw control character": Row(hurt("k11", "a\x01b\nc"), *ONE_LOST),
    "no utf-8": Row(hurt("k11", "#").replace(b"#", b"\xff\xfe"), *ONE_LOST),
    "a hole of zeros": Row(hurt('"name": "k11", "pid": 0', "\0" * 23), *ONE_LOST),
    "NaN": Row(hurt('"ts": 210', '"ts": NaN'), *ONE_LOST),
    "Infinity": Row(hurt('"dur": 4', '"dur": Infinity'), *ONE_LOST),
    "NaN where nobody looks": Row(hurt('"device": 0', '"est. achieved occupancy %": NaN'), *ONE_LOST),
    "missing value": Row(hurt('"ts": 210', '"ts": '), *ONE_LOST),
    # brackets
    "missing ]": Row(hurt("[1, 2, 3]", "[1, 2, 3"), *ONE_LOST),
    "extra ]": Row(hurt("[1, 2, 3]", "[1, 2, 3]]"), *ONE_LOST),
    "missing [": Row(hurt("[1, 2, 3]", "1, 2, 3]"), *ONE_LOST),
    "missing }": Row(hurt("}}", "}"), *ONE_LOST),
    "missing }}": Row(hurt("]}}", "]"), *ONE_LOST),
    "extra }": Row(hurt("}}", "}}}"), {"damaged-events": 1}, set()),
    "missing {": Row(hurt('{"ph"', '"ph"'), {"damaged-events": 3}, {HURT}),  # its head, its arguments, its end
    "missing { of args": Row(hurt('{"device"', '"device"'), {"damaged-events": 2}, {HURT}),
    # between events
    "doubled comma": Row(between(", , "), {"odd-commas": 1}, set()),
    "missing comma": Row(between(" "), {"odd-commas": 1}, set()),
    "garbage": Row(between(", gar bage: 7, "), {"damaged-events": 1}, set()),
    "a string": Row(between(', "}, {", '), {"damaged-events": 1}, set()),
    "a number and zeros": Row(between(", 12\0\0\0, "), {"damaged-events": 1}, set()),
    "a list among events": Row(between(", [1, 2], "), {"damaged-events": 1}, set()),
    "a stray ]": Row(between("], "), {"damaged-events": 1}, set()),
    "trailing comma": Row(TEXT.replace("}}]", "}},]").encode(), {"odd-commas": 1}, set()),
    # odd and legal
    "an event of 10 MB": Row(hurt("[1, 2, 3]", f'[1, 2, 3], "big": {LARGE}'), {}, set()),
    "duplicate keys": Row(hurt('"dur": 4', '"dur": 4, "dur": 4'), {}, set()),
    "negative start": Row(hurt('"ts": 210', '"ts": -5'), {}, set()),
    "negative duration": Row(hurt('"dur": 4', '"dur": -4'), {}, set()),
    "start at zero": Row(hurt('"ts": 210', '"ts": 0'), {}, set()),
    # wrong values
    "deep nesting": Row(hurt("[1, 2, 3]", "[" * 100_000 + "]" * 100_000), *ONE_LOST),
    "deep nesting without end": Row(hurt("[1, 2, 3]", "[" * 100_000), *ONE_LOST),
    "name of a wrong type": Row(hurt('"k11"', "[7]"), *ONE_LOST),
    "time of a wrong type": Row(hurt('"ts": 210', '"ts": "soon"'), *ONE_LOST),
    "args of a wrong type": Row(hurt('"args": {', '"args": [], "x": {'), *ONE_LOST),
    "absurd start": Row(hurt('"ts": 210', '"ts": 1e30'), *ONE_LOST),
    "absurd duration": Row(hurt('"dur": 4', '"dur": 1e12'), *ONE_LOST),
    "a number that no float holds": Row(hurt('"dur": 4', '"dur": 1e400'), *ONE_LOST),
    "overrunning kernel": Row(hurt('"dur": 4', '"dur": 40000000'), {"overrunning-durations": 1}, {HURT}),
}


def names(path: Path) -> list[str]:
    return sorted(load(path).kernels["name"].to_list())


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_what_survives_damage_and_what_is_told(row: Row, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(row.content)
    trace = load(path)
    assert {warning.code: warning.count for warning in trace.warnings} == row.warnings
    assert sorted(trace.kernels["name"].to_list()) == sorted(f"k{n}" for n in range(COUNT) if n not in row.lost)
    told = {warning.code: warning.spoils_totals for warning in trace.warnings}
    assert told == {code: code not in {"odd-commas", "second-trace"} for code in row.warnings}
    assert set(row.warnings) <= {warning.code for warning in diagnose([path]).traces[0].warnings}


@pytest.mark.parametrize("size", [40, 700])
@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if len(row.content) < 10_000])
def test_the_size_of_blocks_and_chunks_does_not_matter(
    name: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanner, "CHUNK_BYTES", size)
    monkeypatch.setattr(source, "BLOCK_BYTES", size)
    path = tmp_path / "trace"
    path.write_bytes(TABLE[name].content)
    assert names(path) == sorted(f"k{n}" for n in range(COUNT) if n not in TABLE[name].lost)


def test_many_damaged_events_cost_only_themselves_and_no_time(tmp_path: Path) -> None:
    """Each second of 20,001 events lacks a bracket; a scan to the end for each of them would take minutes."""
    events = [event(number) for number in range(20_001)]
    path = tmp_path / "trace"
    path.write_text(document([text.replace("3]", "3") if n % 2 else text for n, text in enumerate(events)]))
    trace = load(path)
    assert trace.kernels["name"].to_list() == [f"k{number}" for number in range(0, 20_001, 2)]
    assert [(warning.code, warning.count) for warning in trace.warnings] == [("damaged-events", 10_000)]


def test_a_second_list_of_duplicate_keys_wins(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(hurt('"dur": 4', '"dur": 9, "dur": 6'))
    assert load(path).kernels["duration_ns"].to_list()[HURT] == 6_000


def test_negative_times_are_kept_and_durations_clamped(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(hurt('"ts": 210, "dur": 4', '"ts": -5, "dur": -4'))
    kernels = load(path).kernels
    assert kernels.select("name", "start_ns", "duration_ns").row(0) == ("k11", -105_000, 0)  # the origin is at 100 µs


@pytest.mark.parametrize("wrong", ["", "{", "}", "[", "]", ",", ":", '"', "\\", "\0", "7", "}, {", "]}"])
@pytest.mark.parametrize("keep", [True, False], ids=["put in", "in place of a character"])
def test_a_wrong_character_anywhere_in_an_event_costs_at_most_that_event(
    wrong: str,
    keep: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    path = tmp_path / "trace"
    text = EVENTS[HURT]
    others = {f"k{number}" for number in range(COUNT) if number != HURT}
    lossy = []
    for at in range(len(text)):
        changed = text[:at] + wrong + text[at + (not keep) :]
        path.write_text(document([*EVENTS[:HURT], changed, *EVENTS[HURT + 1 :]]))
        trace = load(path)
        lost = others - set(trace.kernels["name"].to_list())
        if lost:
            lossy.append((at, changed, len(lost)))
        assert trace.event_count == COUNT or trace.warnings, f"silent at {at}: {changed}"
    assert lossy == []
