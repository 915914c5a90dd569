"""The console that reports for terminals are drawn on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from typing import TextIO

NARROWEST, WIDEST = 40, 400
"""A narrower table has no room for its text, and a wider one is mostly blanks."""


def console_on(stream: TextIO) -> Console:
    """Return a console that takes text as it is, as wide as the terminal within what can be read."""
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    console.width = min(max(console.width, NARROWEST), WIDEST)
    return console
