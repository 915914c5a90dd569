"""Which files a path names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import NotATraceError, UsageError
from stepscope.pipeline.load.source import STDIN, is_url

if TYPE_CHECKING:
    from stepscope.pipeline.load.listener import Listener

_SUFFIXES = (".json", ".json.gz", ".json.zst")
_FRONT_END = ".async_llm."
"""In the name of the trace that vLLM's front end writes beside those of its workers; it runs no model."""


def find_traces(path: str | Path, listener: Listener | None = None) -> list[str]:
    """Return what a path names: itself, as a URL and `-` for stdin do, or the JSON files below a folder, packed or not.

    A front end's trace in a folder is passed over, unless nothing else is there.

    Args:
        path: a file, folder or URL.
        listener: told what is passed over.

    Raises:
        UsageError: the path does not exist or cannot be looked at.
        NotATraceError: the folder holds no file that could be a trace.
    """
    if str(path) == STDIN or is_url(str(path)):
        return [str(path)]
    try:
        if not Path(path).exists():
            raise UsageError(f"{path}: no such file or folder")
        if not Path(path).is_dir():
            return [str(path)]
        found = sorted(entry for entry in Path(path).rglob("*") if entry.name.endswith(_SUFFIXES) and entry.is_file())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    if not found:
        raise NotATraceError(f"{path}: the folder holds no trace (no {', '.join(_SUFFIXES)} file)")
    workers = [entry for entry in found if _FRONT_END not in entry.name]
    if workers and listener:
        for entry in found:
            if _FRONT_END in entry.name:
                listener.warns(f"passed over {entry}: the trace of vLLM's front end, which runs no model")
    return [str(entry) for entry in workers or found]


def is_folder(path: str | Path) -> bool:
    """Tell whether a path names a folder of traces."""
    return not is_url(str(path)) and Path(path).is_dir()
