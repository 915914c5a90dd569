"""`stepscope what-if`: the step predicted without, or with faster, work."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from stepscope.cli import options
from stepscope.cli.output import check_writable, result_stream
from stepscope.errors import ExitCode
from stepscope.report import Format


def what_if(  # noqa: PLR0913 -- the options of the command
    path: options.TracePath,
    /,
    *,
    remove: Annotated[
        list[str] | None,
        Parameter(
            "--remove",
            negative=(),
            consume_multiple=False,
            help="A rule that found something, or a glob: of kernels and copies, or of host calls that launch nothing,"
            " such as cudaStreamSynchronize (repeatable).",
        ),
    ] = None,
    scale: Annotated[
        list[str] | None,
        Parameter(
            "--scale",
            negative=(),
            consume_multiple=False,
            help="GLOB=FACTOR: kernels and copies that take so much of their time, such as '*gemm*=0.5'; or"
            " GLOB=DURATION, such as '*cast*=3us' (repeatable).",
        ),
    ] = None,
    fuse: Annotated[
        list[str] | None,
        Parameter(
            "--fuse",
            negative=(),
            consume_multiple=False,
            help="GLOB, or GLOB|GLOB: such kernels become one where they follow each other on a stream (repeatable).",
        ),
    ] = None,
    facts: options.Facts = None,
    capture_trace: options.CaptureTrace = None,
    report_format: options.ReportFormat = Format.TERMINAL,
    output: options.Output = None,
    no_cache: options.NoCache = False,
) -> ExitCode:
    """Predict the step without causes or kernels, or with faster ones: each alone, and one after another."""
    from stepscope import pipeline  # noqa: PLC0415 -- loads polars, which `--help` can do without
    from stepscope.cli.progress import reading  # noqa: PLC0415 -- the same
    from stepscope.report import prediction as report  # noqa: PLC0415 -- the same

    check_writable(output)
    with reading(no_cache=no_cache) as how:
        predicted = pipeline.what_if(
            path,
            remove=remove or (),
            scale=scale or (),
            fuse=fuse or (),
            capture_trace=capture_trace,
            **(facts or {}),
            **how,
        )
    with result_stream(output) as stream:
        report.draw(predicted, report_format, stream)
    return ExitCode.DONE
