"""A console to draw on: colours and the full width on a terminal, plain lines without padding anywhere else."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO


@contextmanager
def console_on(stream: TextIO) -> Iterator[Console]:
    """Yield a console whose text goes to `stream`; names from a trace are never read as markup."""
    if stream.isatty():
        yield Console(file=stream, highlight=False, markup=False, emoji=False)
        return
    plain = Console(file=io.StringIO(), highlight=False, markup=False, emoji=False)
    yield plain
    assert isinstance(plain.file, io.StringIO)  # noqa: S101 -- it was given above
    stream.writelines(f"{line.rstrip()}\n" for line in plain.file.getvalue().splitlines())
