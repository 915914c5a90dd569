"""The floor of a step, as `stepscope floor` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import table as rich_table
from rich.padding import Padding

from stepscope.report import Format
from stepscope.report.console import console_on
from stepscope.report.floor.sections import Plot, sections, summary
from stepscope.report.json import write
from stepscope.report.markdown import escaped, table
from stepscope.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from stepscope.document import Floor
    from stepscope.report.floor.sections import Table


def draw(floor: Floor, report_format: Format, stream: TextIO) -> None:
    """Write the floor to a stream."""
    if report_format is Format.JSON:
        write(floor, stream)
    elif report_format is Format.MARKDOWN:
        stream.writelines(f"{line}\n" for line in _markdown(floor))
    else:
        _draw(floor, stream)


def _draw(floor: Floor, stream: TextIO) -> None:
    with console_on(stream) as console:
        for line in summary(floor):
            console.print(line, style="bold")
        for section in sections(floor):
            console.print()
            console.print(section.title, style="bold")
            if isinstance(section, Plot):
                for line in section.lines:
                    console.print(f"  {line}", no_wrap=True, overflow="crop")
            else:
                console.print(Padding(_drawn(section), (0, 0, 0, 2)))
        console.print()
        console.print("Assumptions", style="bold")
        listed = rich_table.Table.grid(padding=(0, 1, 0, 0))
        for assumption in floor.assumptions:
            listed.add_row("-", printable(assumption))
        console.print(Padding(listed, (0, 0, 0, 2)))


def _drawn(section: Table) -> rich_table.Table:
    drawn = rich_table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, name in enumerate(section.header):
        drawn.add_column(name, justify="left" if number in section.left else "right", overflow="fold")
    for row in section.rows:
        drawn.add_row(*map(printable, row))
    return drawn


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
