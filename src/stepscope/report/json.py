"""A diagnosis as one JSON document and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from typing import TextIO

    from stepscope.document import Diagnosis


def draw(diagnosis: Diagnosis, stream: TextIO) -> None:
    """Write the diagnosis to a stream."""
    write(diagnosis, stream)


def write(value: object, stream: TextIO) -> None:
    """Write a value to a stream as one JSON document, indented."""
    stream.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
