"""`stepscope diagnose`: traces in, a diagnosis out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from stepscope.cli import options
from stepscope.cli.output import check_writable, result_stream
from stepscope.document import Severity
from stepscope.errors import ExitCode, UsageError
from stepscope.report import Format, draw

if TYPE_CHECKING:
    from stepscope.document import Diagnosis


_ORDER = (Severity.CRITICAL, Severity.MAJOR, Severity.MINOR)


def _refuse_options(_type: object, paths: list[str]) -> None:
    """Refuse what begins with a hyphen and is not stdin: an option that does not exist."""
    for path in paths:
        if path.startswith("-") and path != "-":
            raise UsageError(f"Unknown option: {path}.")


def diagnose(  # noqa: PLR0913 -- the options of the command
    paths: Annotated[
        list[str],
        Parameter(
            negative=(),
            allow_leading_hyphen=True,
            validator=_refuse_options,
            help="Trace files (JSON, plain, gzip or zstd), folders of them, URLs, or - for stdin.",
        ),
    ],
    /,
    *,
    facts: options.Facts = None,
    capture_trace: options.CaptureTrace = None,
    fail_on: options.FailOn = None,
    report_format: options.ReportFormat = Format.TERMINAL,
    output: options.Output = None,
    no_cache: options.NoCache = False,
) -> ExitCode:
    """Find what slows the steps of a trace, and what fixing it would really gain."""
    from stepscope import pipeline  # noqa: PLC0415 -- loads polars, which `--help` can do without
    from stepscope.cli.progress import reading  # noqa: PLC0415 -- the same

    check_writable(output)
    with reading(no_cache=no_cache) as how:
        diagnosis = pipeline.diagnose(
            paths,
            capture_trace=capture_trace,
            **(facts or {}),
            **how,
        )
    with result_stream(output) as stream:
        draw(diagnosis, report_format, stream)
    return _exit_code(diagnosis, fail_on)


def _exit_code(diagnosis: Diagnosis, fail_on: str | None) -> ExitCode:
    if fail_on is None:
        return ExitCode.DONE
    refused = _ORDER[: _ORDER.index(Severity(fail_on)) + 1]
    reached = any(finding.severity in refused for finding in diagnosis.findings)
    return ExitCode.THRESHOLD_REACHED if reached else ExitCode.DONE
