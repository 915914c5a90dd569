"""Files as a process sees them, also through `/proc/PID/root`: bounded, and with links that stay inside its root."""

from __future__ import annotations

import ast
import os
import stat
from dataclasses import dataclass
from importlib.util import decode_source
from pathlib import Path, PurePosixPath

MOST_BYTES = 2 << 20
"""The largest source of the engines known is a sixth of it."""
_MOST_LINKS = 40
"""As many as Linux follows."""


@dataclass(frozen=True, eq=False, slots=True)
class SourceFile:
    """A Python file, parsed."""

    path: str
    """As the process sees it."""
    text: str
    tree: ast.Module


class ProcessFiles:
    """The file system of a process: this machine's, or that below its own root."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        self._sources: dict[str, SourceFile | None] = {}

    def here(self, path: str) -> Path:
        """Return where a path of the process lies for this one, its links resolved below the process's root."""
        if self._root is None:
            return Path(path)
        parts, resolved, links = list(reversed(PurePosixPath(path).parts)), PurePosixPath("/"), 0
        while parts:
            part = parts.pop()
            if part in {"/", ".."}:
                resolved = PurePosixPath("/") if part == "/" else resolved.parent
                continue
            target = _link(self._root / (resolved / part).relative_to("/"))
            if target is None:
                resolved /= part
                continue
            links += 1
            if links > _MOST_LINKS:
                break
            parts.extend(reversed(PurePosixPath(target).parts))
        return self._root / resolved.relative_to("/")

    def real(self, path: str) -> str:
        """Return where a path leads, links resolved, as the process sees it."""
        if self._root is None:
            return os.path.realpath(path)
        return f"/{self.here(path).relative_to(self._root)}"

    def is_file(self, path: str) -> bool:
        """Tell whether a path is a regular file that can be looked at."""
        try:
            return stat.S_ISREG(self.here(path).stat().st_mode)
        except (OSError, ValueError):
            return False

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, in order; none: there is no such folder."""
        try:
            return sorted(entry.name for entry in self.here(folder).iterdir())
        except (OSError, ValueError):
            return []

    def read_text(self, path: str) -> str | None:
        """Return a file's text; None: there is none, or it is larger than a source is."""
        try:
            if not self.is_file(path):
                return None
            with self.here(path).open("rb") as file:
                data = file.read(MOST_BYTES + 1)
            return decode_source(data) if len(data) <= MOST_BYTES else None
        except (OSError, ValueError, SyntaxError, LookupError):
            return None

    def source(self, path: str) -> SourceFile | None:
        """Return a Python file, parsed; None: it is not there, or is no Python of this version."""
        if path not in self._sources:
            text = self.read_text(path)
            self._sources[path] = None if text is None else _parsed(path, text)
        return self._sources[path]


def _parsed(path: str, text: str) -> SourceFile | None:
    try:
        return SourceFile(path, text, ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None
