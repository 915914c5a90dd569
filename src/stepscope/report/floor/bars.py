"""Bars drawn in plain text, narrow enough for 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 40
"""Characters of the longest bar."""
BAR = "#"
BEYOND = "+"
"""Of a bar with two parts, the second."""


class Bar(NamedTuple):
    """A row of a plot."""

    label: str
    value: float
    text: str
    """The value, for people."""
    start: float = 0.0
    """Where the bar begins."""
    beyond: float = 0.0
    """Of the value, the part drawn differently, at its end."""


def bars(rows: Sequence[Bar]) -> list[str]:
    """Return a line a row: label, value and bar, on one scale that begins at 0; too short a bar is a dot."""
    scale = max((row.start + row.value for row in rows), default=0.0) or 1.0
    label_width, text_width = max(len(row.label) for row in rows), max(len(row.text) for row in rows)
    return [f"{row.label:<{label_width}}  {row.text:>{text_width}}  {_bar(row, scale)}".rstrip() for row in rows]


def _bar(row: Bar, scale: float) -> str:
    begin, middle, end = (
        round(WIDTH * max(value, 0.0) / scale)
        for value in (row.start, row.start + row.value - row.beyond, row.start + row.value)
    )
    if row.value > 0 and begin == end:
        return " " * min(begin, WIDTH - 1) + "."
    return " " * begin + BAR * (middle - begin) + BEYOND * (end - middle)
