"""The bytes of a trace file, decompressed and in blocks, and what a file is when it is not a trace."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from isal import isal_zlib
from isal.igzip_lib import IsalError

from stepscope.errors import NotATraceError
from stepscope.trace import TraceWarning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib's number for "a gzip header, 32 kB window"
_OTHER_FORMATS = (
    (b"\x28\xb5\x2f\xfd", "a zstd file; decompress it first"),
    (b"PK\x03\x04", "a zip archive; unpack it first"),
    (b"SQLite format 3", "an SQLite database (an Nsight Systems export?)"),
    (b"\x7fELF", "a compiled program"),
    (b"\x89PNG", "a picture"),
)


@dataclass(slots=True)
class Source:
    """A trace file, read once from front to back."""

    path: Path
    warnings: list[TraceWarning] = field(default_factory=list)

    def blocks(self) -> Iterator[bytes]:
        """Yield the decompressed file in blocks of about 1 MB.

        A damaged or cut gzip stream yields everything before the damage and leaves a warning.
        """
        mode = self.path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(
            mode
        ):  # opening a pipe would wait for a writer, perhaps for ever
            raise NotATraceError(f"{self.path}: a pipe or device, not a profiler trace; write it to a file first")
        with self.path.open("rb") as file:
            first = file.read(_BLOCK)
            if not first:
                raise NotATraceError(f"{self.path}: the file is empty, not a profiler trace")
            compressed = iter(lambda: file.read(_BLOCK), b"")
            is_gzip = first.startswith(_GZIP_MAGIC)
            blocks = self._gunzip(first, compressed) if is_gzip else chain((first,), compressed)
            start = next(blocks)
            self._refuse_other_formats(start)
            yield start
            yield from blocks

    def _gunzip(self, first: bytes, compressed: Iterator[bytes]) -> Iterator[bytes]:
        stream = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
        pending = first
        data = b""
        is_first = True
        ended = False
        try:
            while not ended and (pending or data):  # a stream may hold more data than its last input gave
                data = stream.decompress(pending, _BLOCK)
                pending = stream.unused_data if stream.eof else stream.unconsumed_tail
                if data:
                    is_first = False
                    yield data
                if stream.eof:
                    if len(pending) < len(_GZIP_MAGIC):
                        pending += next(compressed, b"")
                    ended = not pending.startswith(_GZIP_MAGIC)  # padding after the last member is legal
                    stream = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
                elif not pending:
                    pending = next(compressed, b"")
        except IsalError as error:  # type: ignore[misc] # isal's stubs do not say that it is an exception
            if is_first:
                raise NotATraceError(f"{self.path}: the gzip data is damaged at its start ({error})") from error
            self._cut(f"the gzip data is damaged ({error}); what precedes the damage was read, but for its last MB")
            return
        if is_first:
            raise NotATraceError(f"{self.path}: the gzip file holds no data, so it is not a profiler trace")
        if not ended:
            self._cut("the gzip data ends early; everything before the cut was read")

    def _cut(self, message: str) -> None:
        self.warnings.append(TraceWarning("damaged-gzip", message, spoils_totals=True))

    def _refuse_other_formats(self, data: bytes) -> None:
        for magic, what in _OTHER_FORMATS:
            if data.startswith(magic):
                raise NotATraceError(f"{self.path}: not a profiler trace: it looks like {what}")
        text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
        if not text.startswith((b"{", b"[")):
            what = "binary data" if b"\0" in data[:4096] else "text that is not JSON"
            raise NotATraceError(f"{self.path}: not a profiler trace: it looks like {what}")
