"""Renderers of a diagnosis: one file a format, each with `draw(diagnosis, stream)`; in `table`, those of tables."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

    from stepscope.document import Diagnosis

NARROWEST, WIDEST = 40, 400
"""Columns; a narrower table has no room for its text, and a wider one is mostly blanks."""


class Format(StrEnum):
    """What a report is written as; each is a module of this package."""

    TERMINAL = "terminal"
    JSON = "json"
    MARKDOWN = "markdown"


class TableFormat(StrEnum):
    """What a table is written as."""

    TERMINAL = "terminal"
    JSON = "json"
    MARKDOWN = "markdown"
    CSV = "csv"
    PARQUET = "parquet"


def draw(diagnosis: Diagnosis, report_format: Format, stream: TextIO) -> None:
    """Write a diagnosis in a format to a stream."""
    import_module(f"{__name__}.{report_format}").draw(diagnosis, stream)
