"""`stepscope ops`: what the ops of a trace launched."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from stepscope.cli import options
from stepscope.cli.output import check_terminal, check_writable, result_stream
from stepscope.errors import ExitCode
from stepscope.report import TableFormat


def ops(
    path: options.TracePath,
    /,
    *,
    name: Annotated[
        str | None,
        Parameter(
            "--name",
            help="Glob of op names, such as 'aten::copy_': each matching op with all that was launched below it. "
            "By default every kernel is listed once, under its innermost op, or its own name where it has none.",
        ),
    ] = None,
    report_format: options.Table = TableFormat.TERMINAL,
    output: options.Output = None,
    no_cache: options.NoCache = False,
) -> ExitCode:
    """List the ops with shapes, dtypes, calls and GPU time per step, kernel, bytes, parents and source."""
    from stepscope import pipeline  # noqa: PLC0415 -- loads polars, which `--help` can do without
    from stepscope.cli.progress import reading  # noqa: PLC0415 -- the same
    from stepscope.report.table import ops as report  # noqa: PLC0415 -- the same

    check_writable(output)
    check_terminal(report_format, output)
    with reading(no_cache=no_cache) as how:
        found = pipeline.ops(path, name=name, **how)
    with result_stream(output) as stream:
        report.draw(found, report_format, stream)
    return ExitCode.DONE
