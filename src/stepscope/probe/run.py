"""Runs `inside.py` with the interpreter of a process, in its namespaces and as its user, within bounds."""

from __future__ import annotations

import os
import secrets
import selectors
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import msgspec

from stepscope.errors import DeviceError, UsageError
from stepscope.probe.packages import DISTRIBUTIONS, MODULES

if TYPE_CHECKING:
    from stepscope.probe.process import Target

SECONDS = 60.0
"""Starting an interpreter whose packages lie on a network's disk takes seconds, and so does cuInit of eight GPUs."""
_MOST_BYTES = 1 << 20
_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Folders = Annotated[dict[_Text, _Text], msgspec.Meta(max_length=256)]


class FoundGpu(msgspec.Struct, frozen=True):
    """A GPU as the driver tells it."""

    name: _Text
    compute_capability: Annotated[str, msgspec.Meta(pattern="^[0-9]{1,3}\\.[0-9]{1,3}$")]
    memory_bytes: int | None


class Collected(msgspec.Struct, frozen=True):
    """What an interpreter said of itself."""

    version: _Text
    executable: _Text
    prefix: _Text
    distributions: _Folders
    """Name → version."""
    folders: _Folders
    """Package → the folder that an import finds."""
    driver_cuda: _Text | None = None
    gpus: Annotated[list[FoundGpu], msgspec.Meta(max_length=64)] = []
    why_no_gpus: _Text | None = None


class CannotEnterError(Exception):
    """The process's file system cannot be entered, only read."""


def collect(target: Target) -> Collected:
    """Return what the interpreter says of itself.

    Raises:
        CannotEnterError: it is in a container that may not be entered from here.
        DeviceError: it does not start, fails, or does not end in time.
        UsageError: the program that was named is no Python.
    """
    mark = f"stepscope-{secrets.token_hex(8)}:"
    asked = msgspec.json.encode(
        {"first_path": target.first_path, "distributions": DISTRIBUTIONS, "modules": MODULES, "mark": mark}
    ).decode()
    script = (resources.files("stepscope.probe") / "inside.py").read_text("utf-8")
    # what a user may have written into an environment must not run as root; nsenter changes users itself
    user, group = target.user if target.user is not None and target.root is None else (None, None)
    try:
        child = subprocess.Popen(  # noqa: S603 -- the interpreter that the user asked about
            [*_entering(target), target.python, *target.options, "-c", script, asked],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=target.environment,
            cwd=None if target.root is not None else _folder(target),
            start_new_session=True,
            user=user,
            group=group,
            extra_groups=None if user is None else [],
        )
    except OSError as error:
        raise DeviceError(f"{target.python}: cannot be started ({error.strerror})") from error
    with child:
        try:
            output, errors = _read(child, target)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
    return _answer(target, child.returncode, output, errors, mark)


def _read(child: subprocess.Popen[bytes], target: Target) -> tuple[bytes, bytes]:
    """Return what a process prints until it ends.

    Raises:
        DeviceError: it does not end in time, or prints more than an answer.
    """
    streams = (child.stdout, child.stderr)
    kept = {stream.fileno(): bytearray() for stream in streams if stream is not None}
    until = time.monotonic() + SECONDS
    with selectors.DefaultSelector() as selector:
        for number in kept:
            selector.register(number, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(until - time.monotonic(), 0))
            if not ready:
                raise DeviceError(
                    f"{target.python}: did not answer within {SECONDS:g} s: a driver that hangs, or a slow disk?"
                )
            for key, _ in ready:
                block = os.read(key.fd, 1 << 16)
                kept[key.fd] += block
                if not block:
                    selector.unregister(key.fd)
                if len(kept[key.fd]) > _MOST_BYTES:
                    raise DeviceError(
                        f"{target.python}: printed more than {_MOST_BYTES >> 20} MiB instead of an answer"
                    )
    with suppress(subprocess.TimeoutExpired):  # it has closed both and lives on: the caller ends it
        child.wait(1)
    output, errors = kept.values()
    return bytes(output), bytes(errors)


def _answer(target: Target, code: int, output: bytes, errors: bytes, mark: str) -> Collected:
    line = next((one for one in output.splitlines() if one.startswith(mark.encode())), None)
    said = errors.decode("utf-8", "replace").strip().splitlines()
    why = f": {said[-1][:300]}" if said else ""
    if line is None:
        if target.root is not None and said and said[-1].startswith("nsenter:"):
            raise CannotEnterError(said[-1][:300])
        if target.pid is None:
            raise UsageError(f"{target.python}: is no Python that answers (exit code {code}){why}")
        raise DeviceError(f"{target.python}: gave no answer (exit code {code}){why}")
    try:
        return msgspec.json.decode(line[len(mark) :], type=Collected)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DeviceError(f"{target.python}: gave an answer that cannot be read ({error})") from error


def _entering(target: Target) -> list[str]:
    """Return the command that enters the container of a process; for one of this machine's own files, nothing."""
    if target.root is None or target.pid is None:
        return []
    nsenter = shutil.which("nsenter")
    if nsenter is None:
        raise CannotEnterError("nsenter is not installed")
    command = [nsenter, "--target", str(target.pid), "--mount", "--root", f"--wd={_inside_folder(target)}"]
    if os.geteuid() != 0:
        command += ["--user", "--preserve-credentials"]
    elif target.user is not None:
        command += ["--setuid", str(target.user[0]), "--setgid", str(target.user[1])]
    return command


def _folder(target: Target) -> str | None:
    return target.cwd if target.cwd and Path(target.cwd).is_dir() else None


def _inside_folder(target: Target) -> str:
    files = target.files
    return target.cwd if target.cwd and files.here(target.cwd).is_dir() else str(PurePosixPath(target.python).parent)
