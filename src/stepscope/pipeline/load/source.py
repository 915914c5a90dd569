"""The bytes of a trace, wherever it lies, decompressed and in blocks; and what a file is when it is not a trace."""

from __future__ import annotations

import stat
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import metadata
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec

from stepscope.errors import NotATraceError, PartNotInstalledError, UsageError
from stepscope.pipeline.load.gunzip import GZIP_MAGIC, DamagedDataError, gunzip
from stepscope.pipeline.load.prefetch import prefetched
from stepscope.pipeline.load.unzstd import ZSTD_MAGIC, unzstd
from stepscope.trace import TraceWarning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

BLOCK_BYTES = 1 << 20
STDIN = "-"

_OTHER_FORMATS = (
    (GZIP_MAGIC, "gzip data within compressed data; decompress it once first"),
    (ZSTD_MAGIC, "zstd data within compressed data; decompress it once first"),
    (b"PK\x03\x04", "a zip archive; unpack it first"),
    (b"SQLite format 3", "an SQLite database (an Nsight Systems export?)"),
    (b"\x7fELF", "a compiled program"),
    (b"\x89PNG", "a picture"),
)


@dataclass(slots=True)
class Source:
    """A trace, read once from front to back: a local file, `-` for stdin, or a URL that fsspec knows."""

    location: str
    warnings: list[TraceWarning] = field(default_factory=list)
    bytes_read: int = 0
    """Bytes read so far, as they lie on disk."""
    size: int | None = None
    """Bytes as they lie on disk; None where that is not known before the end."""

    @property
    def is_local(self) -> bool:
        """Whether it is a file that can be looked at again."""
        return self.location != STDIN and not is_url(self.location)

    def blocks(self) -> Iterator[bytes]:
        """Yield the decompressed text in blocks of about 1 MB; decompression runs ahead in a thread of its own.

        A damaged or cut stream yields everything before the damage and leaves a warning.

        Raises:
            UsageError: it cannot be opened or read.
            PartNotInstalledError: what fsspec needs for such a URL is not installed.
            NotATraceError: it is empty, or is something else.
        """
        with self._opened() as file:
            compressed = self._read(file)
            first = next(compressed, b"")
            if not first:
                raise NotATraceError(f"{self.location}: the file is empty, not a profiler trace")
            blocks: Iterator[bytes] = chain((first,), compressed)
            if first.startswith(GZIP_MAGIC):
                blocks = prefetched(self._decompressed(gunzip(blocks), "gzip"))
            elif first.startswith(ZSTD_MAGIC):
                blocks = prefetched(self._decompressed(unzstd(blocks), "zstd"))
            start = next(blocks)
            self._refuse_other_formats(start)
            yield start
            yield from blocks

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        if self.location == STDIN:
            yield sys.stdin.buffer
            return
        if self.is_local:
            self._refuse_pipes()
        try:
            opened = fsspec.open(self.location, "rb").open() if is_url(self.location) else _local(self.location)
            self.size = getattr(opened, "size", None) if is_url(self.location) else Path(self.location).stat().st_size
        except ImportError as error:
            install = _install(self.location)
            raise PartNotInstalledError(f"{self.location}: cannot be opened ({error}): {install}") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise UsageError(f"{self.location}: cannot be opened ({reason})") from error
        with opened as file:
            yield file

    def _refuse_pipes(self) -> None:
        """Opening a pipe would wait for a writer, perhaps for ever."""
        try:
            mode = Path(self.location).stat().st_mode
        except OSError:
            return  # opening it says why
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise NotATraceError(
                f"{self.location}: a pipe or device, not a profiler trace; write it to a file, or give - for stdin"
            )

    def _read(self, file: BinaryIO) -> Iterator[bytes]:
        while block := file.read(BLOCK_BYTES):
            self.bytes_read += len(block)
            yield block

    def _decompressed(self, data: Iterator[bytes], compression: str) -> Iterator[bytes]:
        found = False
        try:
            for block in data:
                found = True
                yield block
        except DamagedDataError as error:
            if not found:
                message = f"{self.location}: the {compression} data is damaged at its start ({error})"
                raise NotATraceError(message) from error
            self._damaged(f"the {compression} data {error}; everything before that was read")
        if not found:
            raise NotATraceError(
                f"{self.location}: the {compression} file holds no data, so it is not a profiler trace"
            )

    def _damaged(self, message: str) -> None:
        self.warnings.append(TraceWarning("damaged-compression", message, spoils_totals=True))

    def _refuse_other_formats(self, data: bytes) -> None:
        for magic, what in _OTHER_FORMATS:
            if data.startswith(magic):
                raise NotATraceError(f"{self.location}: not a profiler trace: it looks like {what}")
        text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
        if not text.startswith((b"{", b"[")):
            what = "binary data" if b"\0" in data[:4096] else "text that is not JSON"
            raise NotATraceError(f"{self.location}: not a profiler trace: it looks like {what}")


def is_url(location: str) -> bool:
    """Tell whether a location is for fsspec: `s3://…`, `https://…`."""
    return "://" in location


def _install(location: str) -> str:
    """Return the command that installs what fsspec needs for a URL; its extras have the names of the protocols."""
    protocol = location.split("://", 1)[0]
    extra = "http" if protocol == "https" else protocol
    extras = metadata("fsspec").get_all("Provides-Extra") or []
    return f"pip install 'fsspec[{extra if extra in extras else 'full'}]'"


def _local(location: str) -> BinaryIO:
    return Path(location).open("rb")
