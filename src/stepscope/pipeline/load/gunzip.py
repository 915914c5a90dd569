"""Gzip in a stream: several members, and everything that comes before damage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isal import isal_zlib
from isal.igzip_lib import IsalError

if TYPE_CHECKING:
    from collections.abc import Iterator

GZIP_MAGIC = b"\x1f\x8b"

_WINDOW = 31  # zlib's number for "a gzip header, 32 kB window"
_INPUT_BYTES = 1 << 10
_PIECE_BYTES = 1 << 15
"""Input and output of one call: what a damaged call has decoded is lost, also what it decodes ahead."""
_BLOCK_BYTES = 1 << 20


class DamagedDataError(Exception):
    """The data is damaged or ends early; the message completes "the gzip data …"."""


def gunzip(compressed: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the decompressed data in blocks of about 1 MB, all members one after another.

    Raises:
        DamagedDataError: after everything that could be decompressed has been yielded.
    """
    return in_blocks(_pieces(_sliced(compressed)))


def in_blocks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join pieces to blocks of about 1 MB; also those that precede damage."""
    block: list[bytes] = []
    size = 0
    damage = None
    try:
        for piece in pieces:
            block.append(piece)
            size += len(piece)
            if size >= _BLOCK_BYTES:
                yield b"".join(block)
                block.clear()
                size = 0
    except DamagedDataError as error:
        damage = error
    if block:
        yield b"".join(block)
    if damage is not None:
        raise damage


def _sliced(compressed: Iterator[bytes]) -> Iterator[bytes]:
    for block in compressed:
        for start in range(0, len(block), _INPUT_BYTES):
            yield block[start : start + _INPUT_BYTES]


def _pieces(compressed: Iterator[bytes]) -> Iterator[bytes]:
    stream = isal_zlib.decompressobj(wbits=_WINDOW)
    pending = next(compressed, b"")
    data = b""
    try:
        while pending or data:  # a stream may hold more data than its last input gave
            data = stream.decompress(pending, _PIECE_BYTES)
            pending = stream.unused_data if stream.eof else stream.unconsumed_tail
            if data:
                yield data
            if stream.eof:
                if len(pending) < len(GZIP_MAGIC):
                    pending += next(compressed, b"")
                if not pending.startswith(GZIP_MAGIC):  # padding after the last member is legal
                    return
                stream = isal_zlib.decompressobj(wbits=_WINDOW)
            elif not pending:
                pending = next(compressed, b"")
    except IsalError as error:  # type: ignore[misc] # isal's stubs do not say that it is an exception
        raise DamagedDataError(f"is damaged ({error})") from error
    raise DamagedDataError("ends early")
