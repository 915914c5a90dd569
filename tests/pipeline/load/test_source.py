"""What a file is, and what can still be read of a damaged one."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING

import fsspec
import pytest
import zstandard

from stepscope import load
from stepscope.errors import ExitCode, NotATraceError, PartNotInstalledError, UsageError
from stepscope.pipeline.load import find_traces, source
from stepscope.pipeline.load.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable
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


WORDS = json.dumps(
    [{"ph": "X", "name": f"kernel_{_LETTERS.randrange(400)}", "ts": number * 7.125} for number in range(12_000)]
).encode()
"""700 kB that compress as traces do."""


@pytest.mark.parametrize("size", [60_000, 400_000, len(WORDS)])
@pytest.mark.parametrize("share", [0.3, 0.8, 0.99])
def test_a_gzip_damaged_in_the_middle_loses_at_most_32_kb_before_the_damage(
    size: int, share: float, tmp_path: Path
) -> None:
    """The text ends in a block of its own; the next is of type 3, which does not exist."""
    cut = int(size * share)
    packer = zlib.compressobj(wbits=31)
    before = packer.compress(WORDS[:cut]) + packer.flush(zlib.Z_FULL_FLUSH)
    text, warnings = read(file(tmp_path, before + b"\x07" + packer.compress(WORDS[cut:size]) + packer.flush()))
    assert WORDS.startswith(text)
    assert cut - 32_768 <= len(text) <= cut
    assert warnings == ["damaged-compression"]


def zstd(text: bytes, *, checksum: bool = False) -> bytes:
    return zstandard.ZstdCompressor(1, write_checksum=checksum).compress(text)


@pytest.mark.parametrize(
    "content",
    [
        zstd(TEXT),
        zstd(TEXT, checksum=True),
        zstd(TEXT[:1000]) + zstd(TEXT[1000:2_000_000]) + zstd(TEXT[2_000_000:]),
        zstd(TEXT) + zstd(b""),
        zstd(b"") + zstd(TEXT),
        b"".join(zstd(TEXT[start : start + 100_000]) for start in range(0, len(TEXT), 100_000)),
        zstandard.ZstdCompressor(write_content_size=False).compressobj().compress(b"") + zstd(TEXT),
    ],
    ids=["one frame", "checksum", "three frames", "empty last", "empty first", "31 frames", "no size"],
)
def test_a_whole_zstd_file_is_read_without_a_warning(content: bytes, tmp_path: Path) -> None:
    text, warnings = read(file(tmp_path, content))
    assert text == TEXT
    assert warnings == []


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64])
def test_frames_may_begin_anywhere_in_a_block(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BLOCK_BYTES", max(size, 4))  # the first block tells the format by 4 bytes
    members = [b"[" + b"x" * size, b"second", b"third"]
    assert read(file(tmp_path, b"".join(map(zstd, members)))) == (b"".join(members), [])


@pytest.mark.parametrize("share", [0.2, 0.5, 0.999])
def test_a_cut_zstd_keeps_what_precedes_the_cut(share: float, tmp_path: Path) -> None:
    whole = zstd(TEXT)
    cut = int(len(whole) * share)
    text, warnings = read(file(tmp_path, whole[:cut]))
    assert TEXT.startswith(text)
    assert len(text) >= len(TEXT) * share - 2 * 131_072  # a block holds up to 128 kB, and is given whole or not at all
    assert warnings == ["damaged-compression"]


def test_a_zstd_cut_in_its_second_frame_keeps_the_first(tmp_path: Path) -> None:
    assert read(file(tmp_path, zstd(TEXT[:5000]) + zstd(TEXT[5000:])[:100])) == (TEXT[:5000], ["damaged-compression"])


def test_a_corrupt_zstd_frame_keeps_those_before_it(tmp_path: Path) -> None:
    """The second frame's only block is of type 3, which does not exist: 6 bytes of header, then the block's."""
    second = zstd(TEXT[5000:6000])
    header = zstandard.frame_header_size(second)
    corrupt = second[:header] + b"\xff" * 3 + second[header + 3 :]
    text, warnings = read(file(tmp_path, zstd(TEXT[:5000]) + corrupt))
    assert (text, warnings) == (TEXT[:5000], ["damaged-compression"])


def test_a_wrong_zstd_checksum_is_damage(tmp_path: Path) -> None:
    whole = bytearray(zstd(TEXT, checksum=True))
    whole[-1] ^= 1
    text, warnings = read(file(tmp_path, bytes(whole)))
    assert TEXT.startswith(text)
    assert len(text) >= len(TEXT) - 131_072
    assert warnings == ["damaged-compression"]


def test_zstd_blocks_stay_near_a_megabyte(tmp_path: Path) -> None:
    """4 bytes can stand for 128 kB; a whole file of them must not come as one block."""
    path = file(tmp_path, zstd(b"[" + b" " * 100_000_000))
    blocks = [len(block) for block in Source(str(path)).blocks()]
    assert (sum(blocks), max(blocks) <= 10 << 20) == (100_000_001, True)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress], ids=["plain", "gzip", "zstd"])
def test_bytes_are_what_lies_on_disk(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = file(tmp_path, pack(TEXT))
    opened = Source(str(path))
    for _ in opened.blocks():
        assert 0 < opened.bytes_read <= path.stat().st_size
    assert opened.bytes_read == opened.size == path.stat().st_size


EVENTS = b'[{"ph": "X", "cat": "cpu_op", "name": "n", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]'


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress], ids=["plain", "gzip", "zstd"])
def test_a_url_is_read_through_fsspec(pack: Callable[[bytes], bytes]) -> None:
    content = pack(EVENTS)
    with fsspec.open("memory://stepscope-test/rank3.json", "wb") as remote:
        remote.write(content)
    opened = Source("memory://stepscope-test/rank3.json")
    assert b"".join(opened.blocks()) == EVENTS
    assert (opened.size, opened.bytes_read, opened.is_local) == (len(content), len(content), False)
    trace = load("memory://stepscope-test/rank3.json")
    assert (trace.ops.height, trace.rank, trace.file_bytes) == (1, 3, len(content))


@pytest.mark.parametrize(
    "url",
    ["nonsense://host/t.json", "memory://no/such/file.json", "://", "file:///no/such/t.json"],
)
def test_a_url_that_cannot_be_opened_is_wrong_usage_in_one_sentence(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(url)
    assert str(caught.value).startswith(f"{url}: cannot be opened (")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("s3://bucket/t.json", "s3fs", "s3"),
        ("https://host.invalid/t.json", "aiohttp", "http"),
        ("webhdfs://host.invalid/t.json", "requests", "full"),
    ],
)
def test_a_url_whose_part_is_missing_names_the_command_that_installs_it(
    url: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # not installed
    for module in ("http", "webhdfs"):
        monkeypatch.delitem(sys.modules, f"fsspec.implementations.{module}", raising=False)
    with pytest.raises(PartNotInstalledError) as caught:
        load(url)
    assert str(caught.value).startswith(f"{url}: cannot be opened (")
    assert str(caught.value).endswith(f": pip install 'fsspec[{extra}]'")
    assert caught.value.exit_code is ExitCode.PART_NOT_INSTALLED


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress], ids=["plain", "gzip", "zstd"])
def test_stdin_is_read_once_and_whole(pack: Callable[[bytes], bytes]) -> None:
    program = "import stepscope; t = stepscope.load('-'); print(t.path, t.ops.height, t.file_bytes, t.warnings)"
    done = subprocess.run(  # noqa: S603 -- our own program
        [sys.executable, "-W", "error", "-c", program], input=pack(EVENTS), capture_output=True, check=False, timeout=60
    )
    assert (done.stdout.decode().strip(), done.stderr) == (f"- 1 {len(pack(EVENTS))} ()", b"")


def test_nothing_on_stdin_is_no_trace() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stepscope", "diagnose", "-"], input=b"", capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (ExitCode.UNREADABLE_INPUT, b"")
    assert done.stderr == b"stepscope: -: the file is empty, not a profiler trace\n"


def test_packed_traces_are_found_in_folders_and_read(tmp_path: Path) -> None:
    for name, pack in (("a.json", bytes), ("b.json.gz", gzip.compress), ("c.json.zst", zstandard.compress)):
        (tmp_path / name).write_bytes(pack(EVENTS))
    assert [load(found).ops.height for found in find_traces(tmp_path)] == [1, 1, 1]


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
