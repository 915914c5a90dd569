"""The process that a URL or PID names, and the interpreter that it really runs, as the operating system tells them."""

from __future__ import annotations

import os
import re
import shutil
import socket
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stepscope.errors import DeviceError, PartNotInstalledError, UsageError
from stepscope.probe.source.files import ProcessFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*(?:t|d)?")
_FLAGS = "[bBdEhiIOPqRsSuvVx]*"
"""Python's options of one letter that take no value."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MOST_MAPS_BYTES = 16 << 20
KEPT_VARIABLES = frozenset({
    *("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "PYTHONNOUSERSITE", "PYTHONUSERBASE", "PYTHONPLATLIBDIR", "PYTHONUTF8"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
})
"""Of a process's environment, what decides which packages and GPUs it sees: nothing secret, and nothing that profiles."""


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


def find_target(asked: str) -> Target:
    """Return the interpreter that a URL, a PID or a path names.

    Raises:
        UsageError: it is none of them, or not of this machine, or no Python.
        DeviceError: no such process or listener, or it may not be looked at.
        PartNotInstalledError: psutil is not there to look at processes with.
    """
    if re.fullmatch(r"[0-9]{1,10}", asked):
        return _of_process(asked, int(asked))
    if "://" in asked or re.fullmatch(r"(?:[^/\s]*|\[[0-9a-fA-F:]+\]):[0-9]{1,5}", asked):
        return _of_process(asked, _listener(asked))
    return _of_path(asked)


def _of_path(asked: str) -> Target:
    found = shutil.which(asked)
    if found is None:
        what = "is a folder" if Path(asked).is_dir() else "is not executable" if Path(asked).exists() else "does not exist"
        raise UsageError(f"{asked}: {what}; probe takes a server's URL, a PID, or the path of a Python")
    environment = {name: value for name, value in os.environ.items() if name in KEPT_VARIABLES}
    python = str(Path(found).absolute())  # links stay: a virtual environment's Python is one
    notes = (f"PYTHONPATH is this shell's: {environment['PYTHONPATH']}",) if environment.get("PYTHONPATH") else ()
    return Target(asked, python, "it was named", environment=environment, notes=notes)


def _psutil() -> Any:  # noqa: ANN401 -- it has no types
    try:
        import psutil  # noqa: PLC0415 -- of the extra, and only asked for where a process is looked at
    except ImportError as error:
        raise PartNotInstalledError("probe of a process needs psutil: pip install 'stepscope[capture]'") from error
    return psutil


def _listener(asked: str) -> int:
    """Return the process that listens to a URL's port: of several, the oldest Python."""
    psutil = _psutil()
    host, port = _address(asked)
    _check_local(asked, host, psutil)
    try:
        sockets = [one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN and one.laddr.port == port]
    except psutil.AccessDenied as error:
        raise DeviceError(f"{asked}: the listeners of this machine may not be looked at; give the PID instead") from error
    if not sockets:
        raise DeviceError(f"{asked}: no process of this machine listens to port {port}; is the server in a container with "
                          "ports of its own, give its PID instead")  # fmt: skip
    pids = sorted({one.pid for one in sockets if one.pid})
    if not pids:
        raise DeviceError(f"{asked}: a process of another user listens to port {port}: run probe as that user or as root")
    started = sorted((_started(pid, psutil), pid) for pid in pids)
    pythons = [pid for _, pid in started if _is_python(pid, psutil)]
    return (pythons or [pid for _, pid in started])[0]


def _address(asked: str) -> tuple[str, int]:
    try:
        parts = urlsplit(asked if "://" in asked else f"http://{asked}")
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError as error:
        raise UsageError(f"{asked}: is no URL ({error})") from error
    if port is None or not 0 < port < 65536:
        raise UsageError(f"{asked}: names no port")
    return parts.hostname or "localhost", port


def _check_local(asked: str, host: str, psutil: Any) -> None:  # noqa: ANN401 -- it has no types
    try:
        named = {str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{asked}: the host {host} is not known here; probe must run where the server runs") from error
    own = {one.address.partition("%")[0] for several in psutil.net_if_addrs().values() for one in several}
    any_address = {"0.0.0.0", "::"}  # noqa: S104 -- compared with, not bound to
    if not named & (own | any_address) and not any(one.startswith("127.") or one == "::1" for one in named):
        raise UsageError(f"{asked}: {host} is another machine; probe must run where the server runs")


def _started(pid: int, psutil: Any) -> float:  # noqa: ANN401 -- it has no types
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return float("inf")


def _is_python(pid: int, psutil: Any) -> bool:  # noqa: ANN401 -- it has no types
    try:
        return _PYTHON.fullmatch(PurePosixPath(psutil.Process(pid).exe()).name) is not None
    except psutil.Error:
        return False


def _of_process(asked: str, pid: int) -> Target:
    psutil = _psutil()
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
        raise UsageError(f"{asked}: process {pid} runs no program of its own") if os.geteuid() == 0 else _denied(asked, pid, psutil)
    gone = executable.endswith(" (deleted)")
    executable = executable.removesuffix(" (deleted)")
    if _PYTHON.fullmatch(PurePosixPath(executable).name) is None:
        raise UsageError(f"{asked}: {_no_python(pid, executable)}")
    if gone:
        raise DeviceError(f"{asked}: the interpreter of process {pid}, {executable}, has been deleted or replaced")
    root = _root(pid)
    environment = _read(process.environ, psutil) or {}
    cwd = _read(process.cwd, psutil)
    files = ProcessFiles(root)
    python, found_by = _interpreter(pid, executable, command, environment, cwd, files)
    if not files.is_file(python):
        raise DeviceError(f"{asked}: the interpreter of process {pid}, {python}, is gone")
    first, notes = _first_path(command, cwd)
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
    return DeviceError(f"{asked}: process {pid} belongs to {owner} and may not be looked at: run probe as that user or as root")


def _no_python(pid: int, executable: str) -> str:
    if PurePosixPath(executable).name in {"docker-proxy", "rootlessport", "pasta", "slirp4netns", "conmon"}:
        return f"process {pid} is {PurePosixPath(executable).name}, which forwards to a container; give the PID of the server in it"
    return f"process {pid} runs {executable}, which is no Python"


def _root(pid: int) -> Path | None:
    """Return where the process's files lie for others, if they are not this process's."""
    proc = Path(f"/proc/{pid}")
    try:
        is_own = (proc / "ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink()
        return None if is_own and (proc / "root").readlink() == Path("/") else proc / "root"
    except OSError:
        return None


def _interpreter(  # noqa: PLR0913, PLR0917 -- what a process tells of itself
    pid: int, executable: str, command: tuple[str, ...], environment: dict[str, str], cwd: str | None, files: ProcessFiles
) -> tuple[str, str]:
    """Return the path that the interpreter was started by, which is what tells a virtual environment, and how it was found."""
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


def _first_path(command: tuple[str, ...], cwd: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Return what Python puts first on the module path for this command line: a script's folder, or the current one."""
    arguments = iter(command[1:])
    for argument in arguments:
        if argument.startswith(("-X", "-W")):
            if argument in {"-X", "-W"}:
                next(arguments, None)
        elif re.fullmatch(rf"-{_FLAGS}[IP]{_FLAGS}", argument):
            return None, ()
        elif re.fullmatch(rf"-{_FLAGS}[mc].*", argument) or argument == "-":
            return cwd, ()
        elif not argument.startswith("-"):
            return str(PurePosixPath(cwd or "/", argument).parent), ()
    return cwd, ("its command line cannot be read, so which folder is first on its module path is not known",)

