"""The floor of a step, as `stepscope floor` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table

from stepscope.report.console import plain_table
from stepscope.report.floor.sections import Plot, sections, summary
from stepscope.report.formats import draw_as
from stepscope.report.markdown import escaped, table
from stepscope.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from rich.console import Console

    from stepscope.document import Floor
    from stepscope.report import Format


def draw(floor: Floor, report_format: Format, stream: TextIO) -> None:
    """Write the floor to a stream."""
    draw_as(report_format, floor, stream, terminal=_terminal, markdown=_markdown)


def _terminal(floor: Floor, console: Console) -> None:
    for line in summary(floor):
        console.print(line, style="bold")
    for section in sections(floor):
        console.print()
        console.print(section.title, style="bold")
        if isinstance(section, Plot):
            for line in section.lines:
                console.print(f"  {line}", no_wrap=True, overflow="crop")
        else:
            rows = (map(printable, row) for row in section.rows)
            console.print(Padding(plain_table(section.header, rows, texts=section.texts), (0, 0, 0, 2)))
    console.print()
    console.print("Assumptions", style="bold")
    listed = Table.grid(padding=(0, 1, 0, 0))
    for assumption in floor.assumptions:
        listed.add_row("-", printable(assumption))
    console.print(Padding(listed, (0, 0, 0, 2)))


def _markdown(floor: Floor) -> Iterator[str]:
    yield from (f"**{escaped(line)}**  " for line in summary(floor))
    for section in sections(floor):
        yield from ("", f"### {escaped(section.title)}", "")
        if isinstance(section, Plot):
            yield from ("```", *section.lines, "```")
        else:
            yield from table(section.header, section.rows)
    yield from ("", "### Assumptions", "")
    yield from (f"- {escaped(assumption)}" for assumption in floor.assumptions)
