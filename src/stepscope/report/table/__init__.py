"""Renderers of tables: `ops` and `query` know what they draw; the formats that look the same for both are here."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from stepscope.report import TableFormat, markdown
from stepscope.report.text import printable

if TYPE_CHECKING:
    from typing import TextIO

SLICE = 10_000
"""So many rows are turned into text at once: those of a whole trace would take gigabytes."""
_NO_CSV = (pl.Duration, pl.Binary)


def draw(frame: pl.DataFrame, report_format: TableFormat, stream: TextIO) -> None:
    """Write a table as Markdown, CSV or Parquet; lists are JSON text in the first two, null is empty."""
    if report_format is TableFormat.PARQUET:
        packed = io.BytesIO()
        frame.write_parquet(packed)
        stream.flush()
        stream.buffer.write(packed.getbuffer())
    elif report_format is TableFormat.CSV:
        for begin in range(0, max(frame.height, 1), SLICE):
            text = _flat(frame[begin : begin + SLICE]).write_csv(include_header=begin == 0)
            lines = (f"{printable(line)}\n" for line in text.splitlines()) if stream.isatty() else [text]
            stream.writelines(lines)
    else:
        header = tuple(map(markdown.escaped, frame.columns))
        rows = (tuple(map(cell, row)) for row in frame.iter_rows())
        stream.writelines(f"{line}\n" for line in markdown.table(header, rows))


def cell(value: object) -> str:
    """Return a value as text for people: lists as JSON, numbers with three decimals at most, null as nothing."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list | dict):
        return msgspec.json.encode(value).decode()
    return str(value)


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """Turn what CSV cannot hold into text."""
    nested = [name for name, dtype in frame.schema.items() if dtype.is_nested() or isinstance(dtype, _NO_CSV)]
    columns = [
        pl.Series(name, [None if value is None else _text(value) for value in frame[name].to_list()], dtype=pl.String)
        for name in nested
    ]
    return frame.with_columns(columns)


def _text(value: object) -> str:
    return str(value) if isinstance(value, timedelta | bytes) else msgspec.json.encode(value).decode()
