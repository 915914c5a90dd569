"""`stepscope sql`: a query over the tables of a trace."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from stepscope.cli import options
from stepscope.cli.output import check_terminal, check_writable, result_stream
from stepscope.errors import ExitCode
from stepscope.report import TableFormat
from stepscope.trace.tables import COLUMNS

_TABLES = "; ".join(f"{name} ({', '.join(columns)})" for name, columns in COLUMNS.items())


def sql(
    path: options.TracePath,
    query: Annotated[
        str,
        Parameter(
            help="A SELECT, as Polars understands SQL. Times are µs since the first span of the trace, names are text; "
            f"kernels.op joins ops.op, ops.parent too, and kernels.step steps.step. Tables: {_TABLES}."
        ),
    ],
    /,
    *,
    report_format: options.Table = TableFormat.TERMINAL,
    output: options.Output = None,
    no_cache: options.NoCache = False,
) -> ExitCode:
    """Answer a query over the tables `events`, `kernels`, `ops`, `frames` and `steps` of a trace."""
    from stepscope import pipeline  # noqa: PLC0415 -- loads polars, which `--help` can do without
    from stepscope.cli.progress import reading  # noqa: PLC0415 -- the same
    from stepscope.report.table import query as report  # noqa: PLC0415 -- the same

    check_writable(output)
    check_terminal(report_format, output)
    with reading(no_cache=no_cache) as how:
        answer = pipeline.query(path, query, **how)
    with result_stream(output) as stream:
        report.draw(answer, report_format, stream)
    return ExitCode.DONE
