"""What a file is, and what can still be read of a damaged one."""

from __future__ import annotations

import gzip
import random
import zlib
from typing import TYPE_CHECKING

import pytest

from stepscope.errors import ExitCode, NotATraceError
from stepscope.pipeline.load import source
from stepscope.pipeline.load.source import Source

if TYPE_CHECKING:
    from pathlib import Path

_LETTERS = random.Random(5)  # noqa: S311 -- text that does not compress to nothing, the same in every run
TEXT = b'{"traceEvents": [' + bytes(_LETTERS.choices(b"abcdefghijklmnop 0123456789", k=3_000_000)) + b"]}"


def read(path: Path) -> tuple[bytes, list[str]]:
    """Return the decompressed file and the codes of its warnings."""
    opened = Source(str(path))
    return b"".join(opened.blocks()), [warning.code for warning in opened.warnings]


def file(folder: Path, content: bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        TEXT,
        gzip.compress(TEXT, 1),
        gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:2_000_000], 1) + gzip.compress(TEXT[2_000_000:], 1),
        gzip.compress(TEXT, 1) + gzip.compress(b""),
        gzip.compress(TEXT, 1) + b"\0" * 512,
    ],
    ids=["plain", "gzip", "three members", "an empty last member", "padded with zeros"],
)
def test_a_whole_file_is_read_without_a_warning(content: bytes, tmp_path: Path) -> None:
    text, warnings = read(file(tmp_path, content))
    assert text == TEXT
    assert warnings == []


def test_blocks_stay_near_a_megabyte(tmp_path: Path) -> None:
    """A file that compresses a thousandfold must not come as one block."""
    path = file(tmp_path, gzip.compress(b"[" + b" " * 30_000_000, 1))
    blocks = [len(block) for block in Source(str(path)).blocks()]
    assert (sum(blocks), max(blocks) <= 2 << 20) == (30_000_001, True)


@pytest.mark.parametrize("size", [2, 3, 5, 64])
def test_members_may_begin_anywhere_in_a_block(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BLOCK_BYTES", size)
    for length in range(16):  # the second member begins at another offset each time
        members = [b"[" + b"x" * length, b"second", b"third"]
        assert read(file(tmp_path, b"".join(map(gzip.compress, members)))) == (b"".join(members), [])


def test_a_cut_right_after_much_data_in_little_input_keeps_it_all(tmp_path: Path) -> None:
    text = b"[" + b" " * 5_000_000
    assert read(file(tmp_path, gzip.compress(text)[:-8])) == (text, ["damaged-compression"])


@pytest.mark.parametrize("share", [0.2, 0.5, 0.999])
def test_a_cut_gzip_keeps_what_precedes_the_cut(share: float, tmp_path: Path) -> None:
    whole = gzip.compress(TEXT, 1)
    cut = whole[: int(len(whole) * share)]
    expected = zlib.decompressobj(31).decompress(cut)
    text, warnings = read(file(tmp_path, cut))
    assert text == TEXT[: len(text)]
    assert len(text) >= len(expected) - 8  # decoders differ in how much of the last code they give
    assert warnings == ["damaged-compression"]


def test_a_gzip_cut_in_its_second_member_keeps_the_first(tmp_path: Path) -> None:
    text, warnings = read(file(tmp_path, gzip.compress(TEXT[:500]) + gzip.compress(TEXT[500:], 1)[:1000]))
    assert text.startswith(TEXT[:500])
    assert TEXT.startswith(text)
    assert warnings == ["damaged-compression"]


def test_a_gzip_damaged_in_the_middle_keeps_what_precedes(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(TEXT, 1))
    middle = len(whole) * 3 // 4
    whole[middle : middle + 2000] = b"\xff" * 2000
    text, warnings = read(file(tmp_path, bytes(whole)))
    assert text[:1_000_000] == TEXT[:1_000_000]
    assert warnings == ["damaged-compression"]


def test_a_wrong_checksum_is_damage(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(TEXT, 1))
    whole[-8] ^= 0xFF
    text, warnings = read(file(tmp_path, bytes(whole)))
    assert text == TEXT[: len(text)]
    assert len(text) >= len(TEXT) - (1 << 20)
    assert warnings == ["damaged-compression"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (gzip.compress(b"", mtime=0), "holds no data"),
        (b"\x1f\x8b", "damaged at its start"),
        (b"\x1f\x8b\x08\x00" + b"\xff" * 200, "damaged at its start"),
        (bytes(range(256)) * 20, "binary data"),
        (gzip.compress(bytes(range(256)) * 20, mtime=0), "binary data"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"\x28\xb5\x2f\xfdrest", "zstd"),
        (gzip.compress(b"\x28\xb5\x2f\xfdrest", mtime=0), "zstd"),
        (b"\x7fELF\x02\x01", "compiled program"),
        (b"\x89PNG\r\n\x1a\n", "picture"),
        (b"SQLite format 3\0", "SQLite"),
        (b"Hello, this is a log.\n" * 100, "text that is not JSON"),
        (b"   \n\n  ", "text that is not JSON"),
    ],
)
def test_what_is_no_trace_is_named(content: bytes, says: str, tmp_path: Path) -> None:
    path = file(tmp_path, content)
    with pytest.raises(NotATraceError, match=says) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == ExitCode.UNREADABLE_INPUT


@pytest.mark.parametrize("start", [b" \r\n\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_blanks_and_a_byte_order_mark_may_precede(start: bytes, tmp_path: Path) -> None:
    assert read(file(tmp_path, start + b"[]"))[0] == start + b"[]"
