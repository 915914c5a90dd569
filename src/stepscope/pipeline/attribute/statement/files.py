"""Which file of this machine is the source that a trace names: its text is untrusted, and little of it is believed."""

from __future__ import annotations

import os
import stat
from importlib.util import decode_source
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIMIT_BYTES = 1 << 20
"""Larger ones are no source that people wrote; to parse 1 MB takes a second, of the densest text four."""
_MOST_PARTS = 64
"""No source lies deeper; a hostile name has a million parts."""


def sources(recorded: str, folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that may be a recorded one, the likeliest first.

    In each folder it is the recorded path or the longest end of it that exists there; a link that leads out of the
    folder is not followed. Last comes the recorded file itself, where it was recorded with an absolute path and is
    here: a trace of a stranger can so make stepscope read a `.py` file of at most 1 MB, of which no more is shown
    than one statement, of a function whose name and line the trace knew.
    """
    for folder in folders:
        inside = folder.resolve()
        parts = [part for part in PurePosixPath(recorded.replace("\\", "/")).parts if part not in {"/", "..", "."}]
        for skip in range(max(len(parts) - _MOST_PARTS, 0), len(parts)):
            path = folder.joinpath(*parts[skip:])
            if _is_source(path) and path.resolve().is_relative_to(inside):
                yield path
    if _is_absolute(recorded) and _is_source(Path(recorded)):
        yield Path(recorded)


def text_of(path: Path) -> str | None:
    """Return a source decoded as Python does, by its mark or the encoding that it names; None: larger than the limit.

    Raises:
        OSError: it cannot be read.
        SyntaxError, ValueError, LookupError: it is not in its encoding, or there is no such encoding.
    """
    with path.open("rb") as file:
        data = file.read(LIMIT_BYTES + 1)
    return decode_source(data) if len(data) <= LIMIT_BYTES else None


def _is_absolute(recorded: str) -> bool:
    """Tell whether a path is absolute and of this machine: two slashes name another one."""
    return os.path.isabs(recorded) and not recorded.replace("\\", "/").startswith("//")  # noqa: PTH117 -- `Path` joins the slashes


def _is_source(path: Path) -> bool:
    """Tell whether a path is a regular Python file: a device or a pipe is not opened."""
    try:
        return path.suffix == ".py" and stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # a recorded name can be longer than a file's may be
        return False
