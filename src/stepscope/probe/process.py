"""A process as the operating system tells it: its interpreter, environment, file system and user."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from stepscope.errors import DeviceError, UsageError
from stepscope.probe.interpreter import find_interpreter, is_python_name
from stepscope.probe.psutil_extra import load_psutil
from stepscope.probe.source.files import ProcessFiles

_FLAGS = "[bBdEhiIOPqRsSuvVx]*"
"""Python's options of one letter that take no value."""
KEPT_VARIABLES = frozenset(
    [
        "PATH",
        "HOME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TMPDIR",
        "LD_LIBRARY_PATH",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONSAFEPATH",
        "PYTHONNOUSERSITE",
        "PYTHONUSERBASE",
        "PYTHONPLATLIBDIR",
        "PYTHONUTF8",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
    ]
)
"""Of a process's environment, what decides which packages and GPUs it sees: no secrets, and no profilers."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked about: an interpreter, and how the server started it. Paths are as the process sees them."""

    asked: str
    python: str
    python_found_by: str
    pid: int | None = None
    root: Path | None = None
    """Where others find the process's file system; None: it is this machine's."""
    cwd: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    """Python's own options that decide on its module path."""
    first_path: str | None = None
    """What Python put first on its module path; None: nothing, or it is not known."""
    command: tuple[str, ...] = ()
    user: tuple[int, int] | None = None
    """User and group to run as, where they are not this process's."""
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> ProcessFiles:
        """The files that the process sees."""
        return ProcessFiles(self.root)


def of_process(asked: str, pid: int) -> Target:
    """Return the interpreter of a process.

    Raises:
        UsageError: it is no Python.
        DeviceError: there is no such process, or it may not be looked at, or its interpreter is gone.
        PartNotInstalledError: psutil is not there to look with.
    """
    psutil = load_psutil()
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            executable, command = process.exe(), tuple(process.cmdline())
            user, group = process.uids().real, process.gids().real
            if process.status() == psutil.STATUS_ZOMBIE:
                raise DeviceError(f"{asked}: process {pid} has ended")
    except psutil.ZombieProcess as error:
        raise DeviceError(f"{asked}: process {pid} has ended") from error
    except psutil.NoSuchProcess as error:
        raise DeviceError(f"{asked}: there is no process {pid}") from error
    except psutil.AccessDenied as error:
        raise _denied(asked, pid, psutil) from error
    if not executable:  # a process of the kernel, or one that psutil may not see into
        raise (
            UsageError(f"{asked}: process {pid} runs no program of its own")
            if os.geteuid() == 0
            else _denied(asked, pid, psutil)
        )
    if not is_python_name(executable):
        raise UsageError(f"{asked}: {_no_python(pid, executable)}")
    if _is_deleted(pid):
        raise DeviceError(f"{asked}: the interpreter of process {pid}, {executable}, has been deleted or replaced")
    root = _root(pid)
    environment = _read(process.environ, psutil) or {}
    cwd = _read(process.cwd, psutil)
    files = ProcessFiles(root)
    python, found_by = find_interpreter(pid, executable, command, environment, cwd, files)
    if not files.is_file(python):
        raise DeviceError(f"{asked}: the interpreter of process {pid}, {python}, is gone")
    options, first, notes = _started(command, cwd)
    if not environment:
        notes = (*notes, "its environment cannot be read, so PYTHONPATH is taken to be unset")
    return Target(
        asked=asked,
        python=python,
        python_found_by=found_by,
        pid=pid,
        root=root,
        cwd=cwd,
        environment={name: value for name, value in environment.items() if name in KEPT_VARIABLES},
        options=options,
        first_path=first,
        command=command,
        user=(user, group) if os.geteuid() == 0 and user != 0 else None,
        notes=notes,
    )


def _read(what: Any, psutil: Any) -> Any:  # noqa: ANN401 -- psutil has no types
    try:
        return what()
    except (psutil.Error, OSError):
        return None


def _denied(asked: str, pid: int, psutil: Any) -> DeviceError:  # noqa: ANN401 -- it has no types
    owner = _read(psutil.Process(pid).username, psutil) or "another user"
    return DeviceError(f"{asked}: process {pid} belongs to {owner}: run probe as that user or as root")


def _no_python(pid: int, executable: str) -> str:
    name = PurePosixPath(executable).name
    if name in {"docker-proxy", "rootlessport", "pasta", "slirp4netns", "conmon"}:
        return f"process {pid} is {name}, which forwards to a container; give the server's own PID"
    return f"process {pid} runs {executable}, which is no Python"


def _is_deleted(pid: int) -> bool:
    try:
        return str(Path(f"/proc/{pid}/exe").readlink()).endswith(" (deleted)")
    except OSError:
        return False


def _root(pid: int) -> Path | None:
    """Return where the process's files lie for others, if they are not this process's."""
    proc = Path(f"/proc/{pid}")
    try:
        is_own = (proc / "ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink()
        return None if is_own and (proc / "root").readlink() == Path("/") else proc / "root"
    except OSError:
        return None


def _started(command: tuple[str, ...], cwd: str | None) -> tuple[tuple[str, ...], str | None, tuple[str, ...]]:
    """Return Python's own options that decide on the module path, what it puts first there, and what is not known.

    First is a script's folder, or with `-m` and `-c` the current one.
    """
    options: list[str] = []
    arguments = iter(command[1:])
    for argument in arguments:
        letters = re.fullmatch(rf"-({_FLAGS})([mc].*)?", argument)
        if argument.startswith(("-X", "-W")):
            if argument in {"-X", "-W"}:
                next(arguments, None)
        elif argument == "-" or (letters is not None and letters[2]):
            options += _on_path("" if letters is None else letters[1])
            return tuple(options), cwd, ()
        elif letters is not None:
            options += _on_path(letters[1])
        elif not argument.startswith("-"):
            return tuple(options), str(PurePosixPath(cwd or "/", argument).parent), ()
    return (), cwd, ("its command line cannot be read, so what was first on its module path is not known",)


def _on_path(letters: str) -> list[str]:
    return [f"-{letter}" for letter in letters if letter in "EIPsS"]
