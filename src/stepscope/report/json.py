"""A diagnosis as one JSON document and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from typing import TextIO

    from stepscope.document import Diagnosis


def draw(diagnosis: Diagnosis, stream: TextIO) -> None:
    """Write the document to a stream, indented."""
    stream.write(msgspec.json.format(msgspec.json.encode(diagnosis), indent=2).decode() + "\n")
