"""Progress and warnings on stderr: a bar only on a terminal, with bytes, events and the time left."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING, TypedDict

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from stepscope.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.pipeline.load import Cache


class Terminal:
    """A listener that draws a progress bar."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def begins(self, location: str, size: int | None) -> None:
        """Put a new trace in the place of the last."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(printable(PurePath(location).name), total=size, events=0)

    def advances(self, bytes_read: int, events: int) -> None:
        """Move the bar."""
        if self._task is not None:
            self._progress.update(self._task, completed=bytes_read, events=events)

    def warns(self, sentence: str) -> None:
        """Write a line of its own."""
        warn(sentence)


@contextmanager
def progress_bar() -> Iterator[Terminal]:
    """Show a bar while traces are read, and take it away afterwards."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[events]:,} events"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Terminal(progress)


class Reading(TypedDict):
    """How every command reads traces."""

    listener: Terminal
    cache: Cache | None


@contextmanager
def reading(*, no_cache: bool) -> Iterator[Reading]:
    """Read traces with a bar, and from the cache and into it unless told otherwise."""
    from stepscope.pipeline.load import Cache  # noqa: PLC0415 -- loads polars, which `--help` can do without

    with progress_bar() as listener:
        yield Reading(listener=listener, cache=None if no_cache else Cache.of_user())


def warn(sentence: str) -> None:
    """Write one line to stderr."""
    sys.stderr.write(f"stepscope: {printable(sentence)}\n")
