"""Traces that were read before: equal to what reading gives, never stale, and never in the way."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from tests.samples_of_trouble import HOSTILE, pool_cast

from stepscope import load
from stepscope.pipeline.load import Cache, cache
from stepscope.pipeline.load.source import Source
from stepscope.trace import schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stepscope.trace import Trace

FACTS = ("path", "file_bytes", "event_count", "threads", "header", "rank", "device_name", "warnings")


@pytest.fixture(name="kept")
def kept_fixture(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache" / "traces", min_file_bytes=0)


@pytest.fixture(name="file")
def file_fixture(tmp_path: Path) -> Path:
    """A trace with every table, hostile names, a rank, keys after the events, and damage."""
    document = pool_cast(name=HOSTILE, steps=3, layers=2).document()
    document |= {"distributedInfo": {"rank": 5}, "large": 10**30, "odd": [None, {"a": [1.5, "µ\u2028"]}]}
    text = json.dumps(document).replace('"ts": 26', '"ts": NaN', 1)
    path = tmp_path / "trace.json"
    path.write_text(text)
    return path


@pytest.fixture(name="reads")
def reads_fixture(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is read from now on."""
    reads: list[str] = []
    blocks = Source.blocks

    def counted(source: Source) -> Iterator[bytes]:
        reads.append(source.location)
        return blocks(source)

    monkeypatch.setattr(Source, "blocks", counted)
    return reads


def equal(one: Trace, other: Trace) -> bool:
    tables = all(getattr(one, name).equals(getattr(other, name)) for name in schema.TABLES)
    columns = all(getattr(one, name).schema == getattr(other, name).schema for name in schema.TABLES)
    return tables and columns and all(getattr(one, fact) == getattr(other, fact) for fact in FACTS)


def entries(kept: Cache) -> list[Path]:
    return sorted(kept.folder.iterdir()) if kept.folder.exists() else []


def test_a_second_load_is_equal_and_reads_nothing(kept: Cache, file: Path, reads: list[str]) -> None:
    plain = load(file)
    first = load(file, cache=kept)
    assert reads == [str(file)] * 2
    second = load(file, cache=kept)
    assert reads == [str(file)] * 2
    assert plain.warnings
    assert plain.frames.height
    assert equal(plain, first)
    assert equal(plain, second)


def test_a_packed_file_is_kept_too(kept: Cache, tmp_path: Path, reads: list[str]) -> None:
    path = pool_cast(steps=1, layers=1).save(tmp_path / "t.json.gz")
    assert equal(load(path, cache=kept), load(path, cache=kept))
    assert len(reads) == 1


def same_size_and_time(path: Path, change: Callable[[bytearray], None]) -> None:
    """Change a file's content and nothing else that can be seen."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)


@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_a_byte_changed_in_a_sampled_block_is_read_anew(
    place: float, kept: Cache, file: Path, reads: list[str]
) -> None:
    load(file, cache=kept)

    def rename(content: bytearray) -> None:
        at = content.index(b"aten::", int((len(content) - 5000) * place))
        content[at : at + 6] = b"ATEN::"

    file.write_bytes(file.read_bytes().replace(b'"schemaVersion": 1,', b'"schemaVersion": 1, "s": "aten::",'))
    load(file, cache=kept)
    same_size_and_time(file, rename)
    changed = load(file, cache=kept)
    assert len(reads) == 3
    assert equal(changed, load(file))


def test_another_size_or_time_is_read_anew(kept: Cache, file: Path, reads: list[str]) -> None:
    load(file, cache=kept)
    os.utime(file, ns=(1, file.stat().st_mtime_ns + 1))
    load(file, cache=kept)
    assert len(reads) == 2
    time = file.stat().st_mtime_ns
    file.write_bytes(file.read_bytes() + b"\n")
    os.utime(file, ns=(1, time))
    load(file, cache=kept)
    assert len(reads) == 3


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    kept: Cache, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what was read of a file that is still being written would stand for the whole one."""
    blocks = Source.blocks

    def growing(source: Source) -> Iterator[bytes]:
        yield from blocks(source)
        file.write_bytes(file.read_bytes() + b" ")

    monkeypatch.setattr(Source, "blocks", growing)
    load(file, cache=kept)
    assert entries(kept) == []


def test_a_link_of_another_name_tells_another_rank(kept: Cache, tmp_path: Path) -> None:
    path = pool_cast(steps=1, layers=1).save(tmp_path / "t.json")
    link = tmp_path / "rank3.json"
    link.symlink_to(path)
    assert [load(path, cache=kept).rank, load(link, cache=kept).rank, load(path, cache=kept).rank] == [None, 3, None]


@pytest.mark.parametrize("where", ["facts.json", *(f"{name}.arrow" for name in schema.TABLES)])
@pytest.mark.parametrize("how", ["flip", "cut", "empty", "gone", "folder", "garbage"])
def test_a_damaged_entry_is_read_anew_and_replaced(
    where: str, how: str, kept: Cache, file: Path, reads: list[str]
) -> None:
    whole = load(file, cache=kept)
    (entry,) = entries(kept)
    part = entry / where
    content = bytearray(part.read_bytes())
    if how == "flip":
        content[len(content) // 2] ^= 4
    if how in {"gone", "folder"}:
        part.unlink()
    if how == "folder":
        part.mkdir()
    elif how != "gone":
        part.write_bytes(
            {"cut": bytes(content[: len(content) // 2]), "empty": b"", "garbage": b"\xff" * 99}.get(how, bytes(content))
        )
    assert equal(load(file, cache=kept), whole)
    assert len(reads) == 2
    assert equal(load(file, cache=kept), whole)
    assert len(reads) == 2
    assert entries(kept) == [entry]


def test_every_flipped_byte_of_the_facts_is_noticed(kept: Cache, file: Path, reads: list[str]) -> None:
    load(file, cache=kept)
    (entry,) = entries(kept)
    whole = (entry / "facts.json").read_bytes()
    key = kept.key(str(file))
    for at in range(0, len(whole), 7):
        (entry / "facts.json").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert kept.find(str(file), key) is None
    assert len(reads) == 1


@pytest.mark.parametrize(
    "name",
    ["a file stands there", "the parent is a file", "nothing may be made"],
)
def test_a_folder_that_cannot_be_used_keeps_nothing(
    name: str, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_bytes(b"")
    folder = {"a file stands there": blocked, "the parent is a file": blocked / "traces"}.get(name, tmp_path / "new")
    if name == "nothing may be made":

        def refuse(*_arguments: Any, **_options: Any) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    kept = Cache(folder, min_file_bytes=0)
    assert equal(load(file, cache=kept), load(file))
    assert equal(load(file, cache=kept), load(file))
    assert blocked.read_bytes() == b""


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), pl.exceptions.ComputeError("disk full")]
)
def test_a_full_disk_keeps_nothing_and_leaves_nothing(
    error: Exception, kept: Cache, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(frame: pl.DataFrame, path: Path) -> None:
        path.write_bytes(bytes(frame.height and 10))
        if path.name == "launches.arrow":
            raise error

    monkeypatch.setattr(pl.DataFrame, "write_ipc", full)
    assert equal(load(file, cache=kept), load(file))
    assert entries(kept) == []


def test_an_interrupt_while_columns_are_kept_leaves_nothing(
    kept: Cache, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "_write_facts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load(file, cache=kept)
    assert entries(kept) == []


def test_the_oldest_go_when_the_cache_is_full(kept: Cache, tmp_path: Path, reads: list[str]) -> None:
    paths = [pool_cast(steps=2, layers=2).save(tmp_path / f"{number}.json") for number in range(4)]
    load(paths[0], cache=kept)
    (entry,) = entries(kept)
    size = sum(part.stat().st_size for part in entry.iterdir())
    limited = Cache(kept.folder, limit_bytes=size * 3 + size // 2, min_file_bytes=0)

    def used_at(path: Path, time: int) -> None:
        os.utime(kept.folder / str(kept.key(str(path))), (time, time))

    for time, path in enumerate(paths[1:3], 2):
        load(path, cache=limited)
        used_at(path, time)
    used_at(paths[0], 1)
    load(paths[0], cache=limited)  # used now, so that it is no longer the oldest
    load(paths[3], cache=limited)
    assert len(entries(kept)) == 3
    reads.clear()
    for path in (paths[0], paths[2], paths[3]):
        load(path, cache=limited)
    assert reads == []
    load(paths[1], cache=limited)
    assert reads == [str(paths[1])]


def test_a_trace_larger_than_the_limit_is_not_kept(kept: Cache, file: Path) -> None:
    load(file, cache=Cache(kept.folder, limit_bytes=100, min_file_bytes=0))
    assert entries(kept) == []


@pytest.mark.parametrize(("what", "other"), [("__version__", "0.0.0+other"), ("_FORMAT", 0)])
def test_what_another_version_kept_is_not_read(  # noqa: PLR0917 -- fixtures
    what: str, other: object, kept: Cache, file: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(file, cache=kept)
    monkeypatch.setattr(cache, what, other)
    load(file, cache=kept)
    load(file, cache=kept)
    assert (len(reads), len(entries(kept))) == (2, 2)


def test_small_files_are_not_kept(kept: Cache, file: Path) -> None:
    size = file.stat().st_size
    load(file, cache=Cache(kept.folder, min_file_bytes=size + 1))
    assert entries(kept) == []
    load(file, cache=Cache(kept.folder, min_file_bytes=size))
    assert len(entries(kept)) == 1


def run(file: Path, home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 -- our own command
        [sys.executable, "-m", "stepscope", "diagnose", str(file), "--format", "json", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "XDG_CACHE_HOME": str(home)},
    )


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME is Linux's")
def test_the_command_keeps_in_the_users_cache_folder_unless_told_not_to(file: Path, tmp_path: Path) -> None:
    padding = ', "padding": "' + "x" * cache.MIN_FILE_BYTES + '"}'
    text = file.read_text()
    file.write_text(text[:-1] + padding)
    home = tmp_path / "home"
    plain = run(file, home, "--no-cache")
    assert (plain.returncode, plain.stderr) == (0, "")
    assert not home.exists()
    first = run(file, home)
    (entry,) = (home / "stepscope" / "traces").iterdir()
    kept = {part.name: part.stat().st_mtime_ns for part in entry.iterdir()}
    assert set(kept) == {"facts.json", *(f"{name}.arrow" for name in schema.TABLES)}
    second = run(file, home)
    assert plain.stdout == first.stdout == second.stdout
    used = entry.stat().st_mtime_ns
    assert run(file, home, "--no-cache").stdout == plain.stdout
    assert entry.stat().st_mtime_ns == used  # not looked at
    assert {part.name: part.stat().st_mtime_ns for part in entry.iterdir()} == kept


def test_processes_that_keep_the_same_file_at_once_do_not_disturb_each_other(kept: Cache, file: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from stepscope import load; from stepscope.pipeline.load import Cache; "
        "sys.stdin.read(1); "
        "kept = Cache(Path(sys.argv[2]), min_file_bytes=0); "
        "print({load(sys.argv[1], cache=kept).kernels.height for _ in range(5)})"
    )
    processes = [
        subprocess.Popen(  # noqa: S603 -- our own program
            [sys.executable, "-W", "error", "-c", program, str(file), str(kept.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    answers = [process.communicate("x", timeout=60) for process in processes]
    assert answers == [(f"{{{load(file).kernels.height}}}\n", "")] * 3
    assert len(entries(kept)) == 1
    assert equal(load(file, cache=kept), load(file))


def test_stdin_and_urls_are_not_kept(kept: Cache, tmp_path: Path) -> None:
    path = pool_cast(steps=1, layers=1).save(tmp_path / "t.json")
    load(f"file://{path}", cache=kept)
    assert entries(kept) == []


def test_a_folder_or_a_missing_file_has_no_key(kept: Cache, tmp_path: Path) -> None:
    assert kept.key(str(tmp_path)) is None
    assert kept.key(str(tmp_path / "missing")) is None
    assert kept.find(str(tmp_path), None) is None


def test_damage_is_told_again_from_the_cache(kept: Cache, tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    text = json.dumps(pool_cast(steps=3, layers=6).document()).encode()
    path.write_bytes(gzip.compress(text)[:-900])
    codes = [[warning.code for warning in load(path, cache=kept).warnings] for _ in range(2)]
    assert codes == [["damaged-compression", "cut-file"]] * 2
    assert len(entries(kept)) == 1


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(_name: str) -> str:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("platformdirs.user_cache_dir", homeless)
    assert Cache.of_user() is None
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: f"~/.cache/{name}")
    assert Cache.of_user() is None
