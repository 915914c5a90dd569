"""A console to draw on: colours and the full width on a terminal, plain lines without padding anywhere else."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from stepscope.report import NARROWEST, WIDEST

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence
    from typing import Literal, TextIO


@contextmanager
def console_on(stream: TextIO) -> Iterator[Console]:
    """Yield a console whose text goes to `stream`; names from a trace are never read as markup."""
    if stream.isatty():
        yield _console(stream)
        return
    text = io.StringIO()
    yield _console(text)
    stream.writelines(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def plain_table(
    header: Sequence[str],
    rows: Iterable[Iterable[str]],
    *,
    texts: Container[int] = (0,),
    keeps_numbers_whole: bool = False,
) -> Table:
    """Lay out rows without lines between them: text to the left, its longest words broken, and numbers to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column, name in enumerate(header):
        is_text = column in texts
        justify: Literal["left", "right"] = "left" if is_text else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=keeps_numbers_whole and not is_text)
    for row in rows:
        table.add_row(*row)
    return table


def _console(stream: TextIO) -> Console:
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    console.width = min(max(console.width, NARROWEST), WIDEST)
    return console
