"""The list of ops, as `stepscope ops` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepscope import units
from stepscope.kernel_name import short_names
from stepscope.report import TableFormat, table
from stepscope.report.console import console_on
from stepscope.report.json import write
from stepscope.report.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import TextIO

SHOWN = 20
"""So many groups are shown to a person at a terminal; the other formats have all."""


def draw(ops: pl.DataFrame, report_format: TableFormat, stream: TextIO) -> None:
    """Write the list to a stream."""
    if report_format is TableFormat.JSON:
        write({"ops": ops.to_dicts()}, stream)
    elif report_format is TableFormat.TERMINAL:
        _draw(_for_people(ops), stream)
    elif report_format is TableFormat.MARKDOWN:
        table.draw(_for_people(ops), report_format, stream)
    else:
        table.draw(ops, report_format, stream)


def _for_people(ops: pl.DataFrame) -> pl.DataFrame:
    """Shorten the names of kernels, also where one stands for the op that is not known."""
    short = short_names(ops["kernel"].drop_nulls())
    has_no_op = pl.col("name") == pl.col("kernel")
    return ops.with_columns(
        pl.when(has_no_op).then(pl.col("name").replace(short)).otherwise("name").alias("name"),
        pl.col("kernel").replace(short),
    )


def _draw(ops: pl.DataFrame, stream: TextIO) -> None:
    with console_on(stream) as console:
        for op in ops.head(SHOWN).iter_rows(named=True):
            head = Text(_cost(op), style="bold")
            head.append(f"  {shown(op['name'])}")
            console.print(head)
            lines = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
            lines.add_column(style="dim", no_wrap=True)
            lines.add_column(overflow="fold")
            for label, text in _lines(op):
                lines.add_row(label, Text(text))
            console.print(Padding(lines, (0, 0, 0, 3)))
        if not ops.height:
            console.print("No rows.")
        if ops.height > SHOWN:
            console.print(f"… {ops.height - SHOWN:,} more of {ops.height:,} rows; --format csv has them all")


def _cost(op: Mapping[str, Any]) -> str:
    if op["calls_per_step"] is None:
        return units.calls(op["calls"])
    return f"{units.time(op['time_us_per_step'])} a step, {units.calls(op['calls_per_step'])}"


def _lines(op: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if op["input_shapes"] is not None:
        types = op["dtypes"] or [None] * len(op["input_shapes"])
        tensors = [f"{shape} {dtype}" for shape, dtype in zip(op["input_shapes"], types, strict=False) if dtype]
        yield "inputs", ", ".join(tensors) or "no tensors"
    if op["kernel"] is None:
        yield "kernel", "none launched"
    elif op["kernel"] != op["name"]:
        yield "kernel", shown(op["kernel"])
    if op["grid"] is not None:
        yield "grid", " × ".join(map(str, op["grid"]))
    if op["bytes_per_call"] is not None:
        yield "moves", f"{units.size(op['bytes_per_call'])} a call"
    if op["parents"]:
        yield "under", shown(" → ".join(op["parents"]))
    if op["source"] is not None:
        yield "source", shown(op["source"])
    if op["module"] is not None:
        layers = f", layer{'' if len(op['layers']) == 1 else 's'} {units.ranges(op['layers'])}" if op["layers"] else ""
        yield "module", shown(op["module"]) + layers
    yield "calls", f"{units.count(op['calls'])} in the recording"
