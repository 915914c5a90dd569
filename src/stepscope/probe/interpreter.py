"""By which path a process started its interpreter: that, not the program behind it, tells a virtual environment."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.probe.source.files import ProcessFiles

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*(?:t|d)?")
_MOST_MAPS_BYTES = 16 << 20


def is_python_name(path: str) -> bool:
    """Tell whether a program is called as Pythons are."""
    return _PYTHON.fullmatch(PurePosixPath(path).name) is not None


def find_interpreter(  # noqa: PLR0913, PLR0917 -- what a process tells of itself
    pid: int,
    executable: str,
    command: tuple[str, ...],
    environment: dict[str, str],
    cwd: str | None,
    files: ProcessFiles,
) -> tuple[str, str]:
    """Return the interpreter's path, and how it was found."""
    real = files.real(executable)
    candidates = [
        *((path, "its command line") for path in _started_as(command, environment, cwd)),
        *((path, "the libraries that it has loaded") for path in _of_loaded(pid, executable)),
    ]
    if environment.get("VIRTUAL_ENV"):
        candidates.append((f"{environment['VIRTUAL_ENV']}/bin/python", "VIRTUAL_ENV of its environment"))
    for path, found_by in candidates:
        if files.is_file(path) and files.real(path) == real:
            return path, found_by
    return executable, "the program that it runs"


def _started_as(command: tuple[str, ...], environment: dict[str, str], cwd: str | None) -> Iterator[str]:
    if not command or not command[0]:
        return
    if command[0].startswith("/"):
        yield command[0]
    elif "/" in command[0]:
        yield f"{cwd or ''}/{command[0]}"
    else:
        for folder in environment.get("PATH", "").split(":"):
            yield f"{folder}/{command[0]}"


def _of_loaded(pid: int, executable: str) -> Iterator[str]:
    """Yield interpreters of the environments whose packages a process has loaded: also where it renamed itself."""
    try:
        with Path(f"/proc/{pid}/maps").open("rb") as file:
            maps = file.read(_MOST_MAPS_BYTES).decode("utf-8", "backslashreplace")
    except OSError:
        return
    prefixes = dict.fromkeys(re.findall(r" (/\S+)/lib(?:64)?/python[0-9.]+t?/site-packages/", maps))
    for prefix in prefixes:
        for name in ("python", "python3", PurePosixPath(executable).name):
            yield f"{prefix}/bin/{name}"
