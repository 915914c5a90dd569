"""The files that a server writes: waited for until they are all there and whole, and laid into one folder."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from isal import igzip, isal_zlib

from stepscope.document import CapturedTrace, TraceKind, encodable
from stepscope.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.capture.server import Server, TraceName

_POLL_S = 0.25
_QUIET_S = 2.0
"""Where nobody tells how many files will come: so long none came or grew."""
_PATIENCE_S = 60.0
"""A file that is missing for so long after the last change will not come."""
_BLOCK = 1 << 20
_HEAD = 1 << 18
"""Bytes before a trace's events that tell about it."""
_WORLD_SIZE = re.compile(rb'"world_size":\s*(\d{1,6})\b')
_NO_GPU = re.compile(rb'"deviceProperties":\s*\[\s*\]')
_GLOO = re.compile(rb'"distributedInfo":\s*\{\s*"backend":\s*"gloo"')
_LEAST_FREE = 1 << 20

_DAMAGE: tuple[type[Exception], ...] = (OSError, EOFError, cast("type[Exception]", isal_zlib.error))
"""What reading a file raises that is cut or still written to."""

_Stamp = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Written:
    """A file that the server wrote."""

    path: Path
    name: TraceName
    size: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Found:
    """What came, and how many ranks' traces should have come; None: nobody tells."""

    files: Sequence[Written]
    expected: int | None

    @property
    def ranks(self) -> int:
        """Ranks whose traces came."""
        return len({one.name.rank for one in self.of(TraceKind.WORKER)})

    @property
    def complete(self) -> bool:
        """Whether the traces of all ranks came, as far as is told, and all files are whole."""
        return self.ranks >= (self.expected or 1) and all(one.whole for one in self.files)

    def of(self, kind: TraceKind) -> list[Written]:
        """Return the files of a kind, by name."""
        return sorted((one for one in self.files if one.name.kind is kind), key=lambda one: one.path.name)


class Watch:
    """A folder from a moment on: what was there before is none of ours."""

    def __init__(self, folder: Path, server: Server) -> None:
        self._folder, self._server = folder, server
        self._before = self._stamps()
        self._checked: dict[tuple[Path, _Stamp], bool] = {}

    async def begun(self, timeout_s: float) -> None:
        """Wait until a worker begins to write, which is when it has stopped recording; but not longer than told."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if any(self._is_workers(path) for path in self._fresh()):
                return
            await asyncio.sleep(_POLL_S)

    async def wait(self, expected: int | None, timeout_s: float) -> Found:
        """Wait until the traces of all ranks are there and whole, and return what is there in the end.

        Args:
            expected: ranks; None: as many as the traces themselves tell, else all that come.
            timeout_s: longest time to wait.
        """
        begin = changed = time.monotonic()
        stamps: dict[Path, _Stamp] = {}
        while True:
            now, fresh = time.monotonic(), self._fresh()
            if fresh != stamps:
                stamps, changed = fresh, now
            found = await self._found(stamps, expected, settled=now - changed >= _POLL_S)
            if found.complete and (found.expected is not None or now - changed >= _QUIET_S):
                return found
            if now - begin > timeout_s or (stamps and now - changed > min(_PATIENCE_S, timeout_s)):
                return found
            await asyncio.sleep(_POLL_S)

    async def _found(self, stamps: dict[Path, _Stamp], expected: int | None, *, settled: bool) -> Found:
        files = []
        for path, stamp in stamps.items():
            name = self._server.trace_name(path.name)
            if name is None:
                continue
            if settled and (path, stamp) not in self._checked:
                self._checked[path, stamp] = await asyncio.to_thread(is_whole, path)
            files.append(Written(path, name, stamp[0], self._checked.get((path, stamp), False)))
        if expected is None:
            workers = [one.path for one in files if one.name.kind is TraceKind.WORKER and one.whole]
            told = [head_of(path).world_size for path in workers]
            expected = max((size for size in told if size is not None), default=None)
        return Found(files, expected)

    def _is_workers(self, path: Path) -> bool:
        name = self._server.trace_name(path.name)
        return name is not None and name.kind is TraceKind.WORKER

    def _fresh(self) -> dict[Path, _Stamp]:
        return {path: stamp for path, stamp in self._stamps().items() if self._before.get(path) != stamp}

    def _stamps(self) -> dict[Path, _Stamp]:
        stamps: dict[Path, _Stamp] = {}
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if entry.is_file() and self._server.trace_name(entry.name) is not None:
                        told = entry.stat()
                        stamps[Path(entry.path)] = (told.st_size, told.st_mtime_ns)
        except FileNotFoundError:
            return stamps  # a server makes its folder when it writes, and temporary files go
        except OSError as error:
            raise UsageError(f"{self._folder}: cannot be read ({error.strerror})") from error
        return stamps


def check_room(folder: Path) -> None:
    """Refuse a folder on a full disk before anything is recorded.

    Raises:
        DeviceError: nothing can be written there.
    """
    full = full_disk(folder)
    if full is not None:
        raise DeviceError(f"{full}: make room there, or choose another folder")


def full_disk(folder: Path) -> str | None:
    """Say that nothing more can be written to a folder; None: it can."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    return f"the disk that holds {folder} is full ({free:,} B free)" if free < _LEAST_FREE else None


def is_whole(path: Path) -> bool:
    """Tell whether a trace's compressed data, and its list of events, end as they should."""
    try:
        last = b""
        with _opened(path) as file:
            while block := file.read(_BLOCK):
                last = (last + block)[-64:]
    except _DAMAGE:
        return False
    return last.rstrip().endswith((b"}", b"]"))


def _opened(path: Path) -> BinaryIO:
    if path.suffix != ".gz":
        return path.open("rb")
    return cast("BinaryIO", igzip.open(path, "rb"))  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Head:
    """What a trace tells before its events."""

    world_size: int | None
    """Ranks that there are."""
    without_gpu: bool
    """The server computes on the CPU: it names no GPU, and its ranks talk over gloo."""


def head_of(path: Path) -> Head:
    """Return what a trace tells before its events; nothing where it cannot be read."""
    try:
        with _opened(path) as file:
            head = file.read(_HEAD).partition(b'"traceEvents"')[0]
    except _DAMAGE:
        return Head(None, without_gpu=False)
    found = _WORLD_SIZE.search(head)
    return Head(int(found[1]) if found else None, without_gpu=bool(_NO_GPU.search(head) and _GLOO.search(head)))


def gather(files: Iterable[Written], folder: Path) -> list[CapturedTrace]:
    """Lay files into a folder, as links where that can be: the workers', and beside them the others.

    Raises:
        UsageError: the folder cannot be written.
    """
    gathered = []
    for one in sorted(files, key=_workers_by_rank):
        target = folder / one.path.name if one.name.kind is TraceKind.WORKER else folder / one.name.kind / one.path.name
        try:
            _lay(one.path, target, folder)
        except OSError as error:
            raise UsageError(f"{target}: cannot be written ({error.strerror})") from error
        gathered.append(
            CapturedTrace(
                path=encodable(str(target)),
                bytes=one.size,
                rank=one.name.number,
                kind=one.name.kind,
                whole=one.whole,
            )
        )
    return gathered


def _workers_by_rank(one: Written) -> tuple[bool, int, str]:
    return one.name.kind is not TraceKind.WORKER, one.name.number or 0, one.path.name


def _lay(source: Path, target: Path, folder: Path) -> None:
    if target.resolve() == source.resolve():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.parent.resolve() == folder.resolve():  # the server wrote it there for us
        source.replace(target)
        return
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
