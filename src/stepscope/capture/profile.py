"""Start and stop of the server's profiler: whatever happens in between, the server is not left profiling."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from platformdirs import user_cache_path

from stepscope.capture.client import RefusedError, UnreachableError
from stepscope.capture.host import is_loopback
from stepscope.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from stepscope.capture.server import Recording, Server

_RESCUE_S = 30.0
"""Time for a stop after something went wrong: so long an interrupted user waits."""


class Profiler:
    """A recording under way."""

    def __init__(self, server: Server, timeout_s: float) -> None:
        self._server, self._timeout_s = server, timeout_s
        self._runs = True

    async def stop(self) -> None:
        """End the recording.

        Raises:
            DeviceError: the server does not in time, or refuses.
        """
        try:
            await self._server.stop_profile(self._timeout_s)
        except RefusedError as error:
            self._runs = False
            if not self._server.stops_itself:
                raise DeviceError(f"{error} when the recording was to be stopped") from error
        except UnreachableError as error:
            self._runs = False  # asking once more would wait as long
            hint = "it may still be writing a large trace, or be stuck and recording until it is restarted"
            raise DeviceError(f"{error}; {hint}") from error
        else:
            self._runs = False

    def ended(self) -> None:
        """Take note that the server ended it by itself."""
        self._runs = False

    @property
    def runs(self) -> bool:
        """Whether the server may still be recording."""
        return self._runs


@asynccontextmanager
async def profiling(
    server: Server, recording: Recording, timeout_s: float, says: Callable[[str], None]
) -> AsyncIterator[Profiler]:
    """Record inside this context; a recording that is still under way at its end is stopped.

    Raises:
        DeviceError: the server does not start, or broke off.
    """
    profiler = Profiler(server, timeout_s)
    try:
        await _start(server, recording, timeout_s)
        yield profiler
    except _NotStartedError as error:
        raise DeviceError(str(error)) from error.__cause__
    except BaseException as error:
        if profiler.runs:
            says("stopping the server's profiler")
            await _rescue(server, error)
        raise
    if profiler.runs:
        await profiler.stop()


class _NotStartedError(DeviceError):
    """The server answered that it does not record."""


async def _start(server: Server, recording: Recording, timeout_s: float) -> None:
    try:
        await server.start_profile(recording, timeout_s)
    except RefusedError as error:
        why = "if it is recording already, end that with a POST to /stop_profile"
        raise _NotStartedError(f"{error}; {why}") from error


async def _rescue(server: Server, cause: BaseException) -> None:
    """Stop what may be running; that nothing runs any more is as good."""
    try:
        await server.stop_profile(_RESCUE_S)
    except RefusedError:
        return
    except UnreachableError as error:
        if isinstance(cause, DeviceError):
            hint = "if it still runs, it may be recording: a POST to /stop_profile ends that"
            raise DeviceError(f"{cause}; then it could not be told to stop ({error}); {hint}") from cause


@contextmanager
def alone(host: str, port: int) -> Iterator[None]:
    """Keep other captures of this user away from the server: the second start is ignored, its stop ends the first.

    Raises:
        DeviceError: one is under way.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl  # noqa: PLC0415 -- Unix only

    folder = user_cache_path("stepscope") / "capture"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{_address(host)}-{port}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DeviceError(f"{host}:{port}: another capture from this server is under way") from error
        file.write(str(os.getpid()))
        file.flush()
        yield


def _address(host: str) -> str:
    if is_loopback(host):
        return "loopback"
    try:
        return socket.gethostbyname(host)
    except OSError:
        return host.replace(os.sep, "-")
