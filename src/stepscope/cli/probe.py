"""`stepscope probe`: the environment that a server really runs in."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from stepscope.cli import options
from stepscope.cli.output import check_writable, result_stream
from stepscope.errors import ExitCode
from stepscope.report import Format


def probe(
    asked: Annotated[str, Parameter(help="A server's URL on this machine, its PID, or the path of a Python.")],
    /,
    *,
    model: Annotated[
        str | None,
        Parameter("--model", help="Model preset, or a config.json or its folder: whose head sizes backends must take."),
    ] = None,
    report_format: options.ReportFormat = Format.TERMINAL,
    output: options.Output = None,
) -> ExitCode:
    """Tell which interpreter a server runs, its packages and GPUs, and which MLA backends can read an FP8 KV cache.

    Nothing is run in the server's process.
    """
    from stepscope.probe import probe as look  # noqa: PLC0415 -- `--help` can do without
    from stepscope.report import probe as report  # noqa: PLC0415 -- only when there is something to draw

    check_writable(output)
    found = look(asked, model=model)
    with result_stream(output) as stream:
        report.draw(found, report_format, stream)
    return ExitCode.DONE
