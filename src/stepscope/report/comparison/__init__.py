"""Two traces side by side, as `stepscope compare` prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table

from stepscope.report.comparison.sections import inputs, sections
from stepscope.report.console import plain_table
from stepscope.report.formats import draw_as
from stepscope.report.markdown import escaped, table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from rich.console import Console

    from stepscope.document import Comparison
    from stepscope.report import Format


def draw(comparison: Comparison, report_format: Format, stream: TextIO) -> None:
    """Write the comparison to a stream."""
    draw_as(report_format, comparison, stream, terminal=_terminal, markdown=_markdown)


def _terminal(comparison: Comparison, console: Console) -> None:
    labelled = Table.grid(padding=(0, 1, 0, 0))
    labelled.add_column(no_wrap=True)
    labelled.add_column(overflow="fold")
    for row in inputs(comparison):
        labelled.add_row(*row)
    console.print(labelled)
    for section in sections(comparison):
        console.print()
        console.print(section.title, style="bold")
        for line in section.lines:
            console.print(Padding(line, (0, 0, 0, 2)))
        if section.rows:
            drawn = plain_table(section.header, section.rows, texts=section.texts, keeps_numbers_whole=True)
            console.print(Padding(drawn, (0, 0, 0, 2)))


def _markdown(comparison: Comparison) -> Iterator[str]:
    yield from ("# stepscope comparison", "")
    yield from (f"- **{label}**: {escaped(text)}" for label, text in inputs(comparison))
    for section in sections(comparison):
        yield from ("", f"## {escaped(section.title)}", "")
        yield from (f"- {escaped(line)}" for line in section.lines)
        if section.rows:
            if section.lines:
                yield ""
            yield from table(section.header, section.rows)
