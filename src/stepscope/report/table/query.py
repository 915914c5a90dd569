"""The answer to a query, as `stepscope sql` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from stepscope.report import TableFormat, table
from stepscope.report.console import console_on
from stepscope.report.text import printable

if TYPE_CHECKING:
    from typing import TextIO

    import polars as pl
    from rich.console import Console

SHOWN = 50
"""So many rows are shown to a person at a terminal; the other formats have all."""
LEAST = 20
"""A wider column gets at least this much, and what room is left."""
_GAP = 2


def draw(answer: pl.DataFrame, report_format: TableFormat, stream: TextIO) -> None:
    """Write the answer to a stream."""
    if report_format is TableFormat.JSON:
        _write(answer, stream)
    elif report_format is TableFormat.TERMINAL:
        with console_on(stream) as console:
            _draw(answer, console)
    else:
        table.draw(answer, report_format, stream)


def _write(answer: pl.DataFrame, stream: TextIO) -> None:
    """Write one JSON document, a row a line: of a whole trace, all rows at once would take gigabytes."""
    encode = msgspec.json.encode
    stream.write(f'{{\n  "columns": {encode(answer.columns).decode()},\n  "rows": [')
    between = "\n    "
    for part in answer.iter_slices(table.SLICE):
        rows = [encode(row).decode() for row in part.iter_rows()]
        stream.write(between + ",\n    ".join(rows))
        between = ",\n    "
    stream.write("\n  ]\n}\n" if answer.height else "]\n}\n")


def _draw(answer: pl.DataFrame, console: Console) -> None:
    names = [printable(name) for name in answer.columns]
    rows = [[printable(table.cell(value)) for value in row] for row in answer.head(SHOWN).iter_rows()]
    widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
    widths = _fitted(widths, console.width)
    fitting = len(widths)
    drawn = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for name, dtype, width in zip(names, answer.dtypes, widths, strict=False):
        right = dtype.is_numeric()
        drawn.add_column(Text(name), justify="right" if right else "left", no_wrap=True, max_width=width)
    for row in rows:
        drawn.add_row(*map(Text, row[:fitting]))
    console.print(drawn)
    if answer.height > SHOWN:
        console.print(f"… {answer.height - SHOWN:,} more of {answer.height:,} rows; --format csv has them all")
    if fitting < len(names):
        console.print(f"… no room for {', '.join(names[fitting:])}; --format csv has them")
    if not rows:
        console.print("no rows")


def _fitted(widths: list[int], room: int) -> list[int]:
    """Return the widths of the first columns, as many as fit beside each other; at least of one."""
    fitted: list[int] = []
    for width in widths:
        least = min(width, LEAST)
        gap = _GAP if fitted else 0
        if fitted and gap + least > room:
            break
        fitted.append(least)
        room -= gap + least
    for number, width in enumerate(widths[: len(fitted)]):
        more = max(min(width - fitted[number], room), 0)
        fitted[number] += more
        room -= more
    return fitted
