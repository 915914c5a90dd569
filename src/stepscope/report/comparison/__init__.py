"""Two traces side by side, as `stepscope compare` prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table

from stepscope.report import Format
from stepscope.report.comparison.sections import inputs, sections
from stepscope.report.console import console_on
from stepscope.report.json import write
from stepscope.report.markdown import escaped, table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from stepscope.document import Comparison
    from stepscope.report.comparison.sections import Section


def draw(comparison: Comparison, report_format: Format, stream: TextIO) -> None:
    """Write the comparison to a stream."""
    if report_format is Format.JSON:
        write(comparison, stream)
    elif report_format is Format.MARKDOWN:
        stream.writelines(f"{line}\n" for line in _markdown(comparison))
    else:
        _draw(comparison, stream)


def _draw(comparison: Comparison, stream: TextIO) -> None:
    with console_on(stream) as console:
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
                console.print(Padding(_drawn(section), (0, 0, 0, 2)))


def _drawn(section: Section) -> Table:
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, name in enumerate(section.header):
        is_text = section.is_text(number)
        drawn.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for row in section.rows:
        drawn.add_row(*row)
    return drawn


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
