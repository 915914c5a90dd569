"""Zstd in a stream: several frames, and everything that comes before damage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import zstandard

from stepscope.pipeline.load.gunzip import DamagedDataError, in_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

_INPUT_BYTES = 256
"""Input of one call: what a damaged call has decoded is lost, and 4 bytes can stand for 128 kB."""


def unzstd(compressed: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the decompressed data in blocks of about 1 MB, all frames one after another.

    Raises:
        DamagedDataError: after everything that could be decompressed has been yielded.
    """
    return in_blocks(_pieces(compressed))


def _pieces(compressed: Iterator[bytes]) -> Iterator[bytes]:
    stream = None
    try:
        for block in compressed:
            view = memoryview(block)
            for start in range(0, len(view), _INPUT_BYTES):
                pending = bytes(view[start : start + _INPUT_BYTES])
                while pending:
                    stream = stream or zstandard.ZstdDecompressor().decompressobj()
                    data = stream.decompress(pending)
                    pending = stream.unused_data
                    if data:
                        yield data
                    if stream.eof:
                        stream = None
    except zstandard.ZstdError as error:
        raise DamagedDataError(f"is damaged ({error})") from error
    if stream is not None:
        raise DamagedDataError("ends early")
