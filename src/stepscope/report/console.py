"""A console to draw on: colours and the full width on a terminal, plain lines without padding anywhere else."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from stepscope.report import NARROWEST, WIDEST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO


@contextmanager
def console_on(stream: TextIO) -> Iterator[Console]:
    """Yield a console whose text goes to `stream`; names from a trace are never read as markup."""
    if stream.isatty():
        yield _console(stream)
        return
    text = io.StringIO()
    yield _console(text)
    stream.writelines(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _console(stream: TextIO) -> Console:
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    console.width = min(max(console.width, NARROWEST), WIDEST)
    return console
