"""JSON files that users name or that lie beside them: read with a bound, refused with one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

Decoded = TypeVar("Decoded")

MOST_BYTES = 16 << 20
"""No config or server's answer is as large; a pipe that never ends is."""


def read_bytes(path: Path, what: str) -> bytes:
    """Return what a file or pipe holds; `what` begins the sentence that refuses it.

    Raises:
        UsageError: it cannot be read, or is too large.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{what}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if len(content) > MOST_BYTES:
        raise UsageError(f"{what}: is larger than {MOST_BYTES >> 20} MiB, which no such file is")
    return content


def read_object(path: Path, what: str) -> dict[str, Any]:
    """Return the JSON object that a file holds.

    Raises:
        UsageError: it cannot be read, or holds something else.
    """
    return decode(read_bytes(path, what), dict[str, Any], what)


def decode(content: bytes, kind: type[Decoded], what: str) -> Decoded:
    """Return what a JSON text holds, as this type.

    Raises:
        UsageError: it is no JSON, or of another type.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError as error:
        raise UsageError(f"{what}: its objects are nested too deeply") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{what}: {error}") from error


def convert(value: object, kind: type[Decoded], what: str) -> Decoded:
    """Return what a part of a JSON document holds, as this type.

    Raises:
        UsageError: it is of another type.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{what}: {error}") from error
