"""The floor of a step, as `stepscope floor` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from stepscope import units
from stepscope.report import Format
from stepscope.report.console import console_on
from stepscope.report.json import write
from stepscope.report.markdown import table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from stepscope.document import Floor

_HEADER = ("component", "least time", "share", "bytes", "bound by")


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
        console.print(_summary(floor), style="bold")
        drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name in _HEADER:
            drawn.add_column(name, justify="right" if name in _HEADER[1:4] else "left")
        for row in _rows(floor):
            drawn.add_row(*row)
        console.print(drawn)
        for assumption in floor.assumptions:
            console.print(f"- {assumption}")


def _markdown(floor: Floor) -> Iterator[str]:
    yield f"**{_summary(floor)}**"
    yield ""
    yield from table(_HEADER, _rows(floor))
    if floor.assumptions:
        yield ""
        yield from (f"- {assumption}" for assumption in floor.assumptions)


def _summary(floor: Floor) -> str:
    text = f"floor {units.time(floor.floor_us_per_step)} a step, {units.count(round(floor.tokens_per_s, 1))} tokens/s"
    if floor.measured_us is None or floor.unexplained_us is None:
        return text
    return f"{text}; measured {units.time(floor.measured_us)}, unexplained {units.time(floor.unexplained_us)}"


def _rows(floor: Floor) -> Iterator[tuple[str, ...]]:
    for part in floor.components:
        share = units.share(part.time_us / floor.floor_us_per_step)
        yield part.name, units.time(part.time_us), share, units.size(part.bytes), part.bound
