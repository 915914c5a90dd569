"""Answers of more rows than are written at once are one document, and hold every row once."""

from __future__ import annotations

import csv
import json
from io import StringIO

import polars as pl
import pytest

from stepscope.report import TableFormat
from stepscope.report.table import SLICE, query


@pytest.mark.parametrize("rows", [0, 1, SLICE, SLICE + 1, 2 * SLICE + 7])
def test_every_row_is_written_once(rows: int) -> None:
    answer = pl.DataFrame(
        {"n": pl.Series(range(rows), dtype=pl.Int64), "text": pl.Series(['a,"b"\n'] * rows, dtype=pl.String)}
    )
    drawn = {}
    for report_format in (TableFormat.JSON, TableFormat.CSV):
        stream = StringIO()
        query.draw(answer, report_format, stream)
        drawn[report_format] = stream.getvalue()
    assert json.loads(drawn[TableFormat.JSON]) == {
        "columns": ["n", "text"],
        "rows": [[number, 'a,"b"\n'] for number in range(rows)],
    }
    assert list(csv.reader(StringIO(drawn[TableFormat.CSV]))) == [
        ["n", "text"],
        *([str(number), 'a,"b"\n'] for number in range(rows)),
    ]
