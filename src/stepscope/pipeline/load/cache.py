"""Traces that were read before, as Arrow files in the user's cache folder.

A trace is known by its path, size, modification time and a hash of its first, last and 64 sampled blocks. What cannot
be read back is read anew; what cannot be kept is not. Oldest entries go when the cache is full.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import platformdirs
import polars as pl
from isal import isal_zlib

from stepscope.trace import Trace, TraceWarning, schema
from stepscope.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

MIN_FILE_BYTES = 16 << 20
"""Smaller files are read about as fast as their cached columns are found."""
LIMIT_BYTES = 4 << 30
SAMPLED_BLOCKS = 64
_BLOCK_BYTES = 4096
_CHECKED_BYTES = 1 << 20
_FACTS = "facts.json"
_FORMAT = 4
"""Raised when the columns change or mean something else, so that no other's entry is read."""


class _Facts(msgspec.Struct):
    """What a trace holds besides its tables."""

    file_bytes: int
    event_count: int
    threads: list[tuple[str, str]]
    header: dict[str, Any]
    rank: int | None
    device_name: str | None
    warnings: list[TraceWarning]
    checksums: dict[str, int]
    """Of each table's file: Polars reads many damaged files without an error, and panics at some."""


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder with an entry a trace."""

    folder: Path
    limit_bytes: int = LIMIT_BYTES
    min_file_bytes: int = MIN_FILE_BYTES

    @classmethod
    def of_user(cls) -> Self | None:
        """Return the user's own; None where the user has no folder for it."""
        try:
            folder = Path(platformdirs.user_cache_dir("stepscope")) / "traces"
        except RuntimeError:  # no home: newer versions of platformdirs say so
            return None
        return cls(folder) if folder.is_absolute() else None  # and older ones return `~`

    def key(self, path: str) -> str | None:
        """Return what a file is known by as it is now; None where that cannot be told."""
        try:
            return _key(Path(path))
        except OSError:
            return None

    def find(self, path: str, key: str | None) -> Trace | None:
        """Return the trace of a file that was kept and has not changed since."""
        if key is None:
            return None
        entry = self.folder / key
        try:
            facts = _read_facts(entry)
            tables = {name: _read_table(entry, name, facts.checksums[name]) for name in schema.TABLES}
            os.utime(entry)  # the latest used is the last to go
        except (OSError, KeyError, ValueError, msgspec.MsgspecError, pl.exceptions.PolarsError):
            return None
        if any(tables[name].schema != schema.polars_schema(columns) for name, columns in schema.TABLES.items()):
            return None
        return Trace(
            path=path,
            file_bytes=facts.file_bytes,
            event_count=facts.event_count,
            threads=tuple(facts.threads),
            header=facts.header,
            rank=facts.rank,
            device_name=facts.device_name,
            warnings=tuple(facts.warnings),
            **tables,
        )

    def keep(self, trace: Trace, key: str | None) -> None:
        """Write a trace's columns beside what is there; a full or unwritable disk only means that nothing is kept.

        Args:
            trace: what was read.
            key: what its file was known by before it was read; one that has changed meanwhile is not kept.
        """
        if key is None or trace.file_bytes < self.min_file_bytes or self.key(trace.path) != key:
            return
        entry, new = self.folder / key, None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            new = Path(tempfile.mkdtemp(dir=self.folder, prefix="."))
            for name in schema.TABLES:
                getattr(trace, name).write_ipc(new / f"{name}.arrow")
            _write_facts(trace, new)
            shutil.rmtree(entry, ignore_errors=True)  # one that could not be read back
            new.rename(entry)
            self._make_room(entry)
        except (OSError, pl.exceptions.PolarsError):
            return
        finally:
            if new is not None:  # and was not renamed
                shutil.rmtree(new, ignore_errors=True)

    def _make_room(self, newest: Path) -> None:
        entries = sorted(self._entries(), key=lambda entry: entry.stat().st_mtime)
        sizes = {entry: sum(file.stat().st_size for file in entry.iterdir()) for entry in entries}
        total = sum(sizes.values())
        for entry in entries:
            if total <= self.limit_bytes:
                return
            if entry != newest or len(entries) == 1:
                total -= sizes[entry]
                shutil.rmtree(entry, ignore_errors=True)

    def _entries(self) -> Iterator[Path]:
        with suppress(OSError):
            yield from (entry for entry in self.folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _write_facts(trace: Trace, entry: Path) -> None:
    facts = _Facts(
        file_bytes=trace.file_bytes,
        event_count=trace.event_count,
        threads=list(trace.threads),
        header=dict(trace.header),
        rank=trace.rank,
        device_name=trace.device_name,
        warnings=list(trace.warnings),
        checksums={name: _checksum(entry / f"{name}.arrow") for name in schema.TABLES},
    )
    text = msgspec.json.encode(facts)
    (entry / _FACTS).write_bytes(b"%08x\n%b" % (isal_zlib.crc32(text), text))


def _read_facts(entry: Path) -> _Facts:
    checksum, _, text = (entry / _FACTS).read_bytes().partition(b"\n")
    if int(checksum, 16) != isal_zlib.crc32(text):
        raise ValueError("damaged")
    return msgspec.json.decode(text, type=_Facts)


def _read_table(entry: Path, name: str, checksum: int) -> pl.DataFrame:
    file = entry / f"{name}.arrow"
    if _checksum(file) != checksum:
        raise ValueError("damaged")
    return pl.read_ipc(file)


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(_CHECKED_BYTES):
            checksum = isal_zlib.crc32(block, checksum)
    return checksum


def _key(path: Path) -> str:
    """Return what a file is known by; stepscope's version and the columns' are part of it."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is no file, so it cannot be read twice")
    digest = hashlib.blake2b(os.fsencode(path.absolute()), digest_size=20)
    digest.update(f"{__version__}\0{_FORMAT}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    with path.open("rb") as file:
        last = max(status.st_size - _BLOCK_BYTES, 0)
        for number in range(SAMPLED_BLOCKS + 2):  # the first, the last, and 64 between
            file.seek(last * number // (SAMPLED_BLOCKS + 1))
            digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()
