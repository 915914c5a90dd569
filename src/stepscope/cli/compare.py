"""`stepscope compare`: two traces side by side."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from stepscope.cli import options
from stepscope.cli.output import check_writable, result_stream
from stepscope.document import Verdict
from stepscope.errors import ExitCode, UsageError
from stepscope.report import Format

if TYPE_CHECKING:
    from stepscope.document import Comparison

_PERCENT = re.compile(r"^(?P<number>\d{1,9}(\.\d{1,9})?|\.\d{1,9})\s*%?$", re.ASCII)


def compare(  # noqa: PLR0913 -- the options of the command
    before: Annotated[str, Parameter(help="The trace to compare with: a file, a URL, or a folder of ranks.")],
    after: Annotated[str, Parameter(help="The trace after the change; of folders, each rank is compared with itself.")],
    /,
    *,
    facts: options.Facts = None,
    fail_if_slower: Annotated[
        str | None,
        Parameter(
            "--fail-if-slower",
            help="Exit with 1 if a step became slower by more than this many percent (3 or 3%), beyond noise.",
        ),
    ] = None,
    report_format: options.ReportFormat = Format.TERMINAL,
    output: options.Output = None,
    no_cache: options.NoCache = False,
) -> ExitCode:
    """Compare the steps of two traces: what differs, whether noise explains it, and whether the what-if was right."""
    from stepscope import comparison  # noqa: PLC0415 -- loads polars, which `--help` can do without
    from stepscope.cli.progress import reading, warn  # noqa: PLC0415 -- the same
    from stepscope.report import comparison as report  # noqa: PLC0415 -- the same

    check_writable(output)
    limit = None if fail_if_slower is None else _fraction(fail_if_slower)
    with reading(no_cache=no_cache) as how:
        found = comparison.compare(
            before,
            after,
            **(facts or {}),
            **how,
        )
    if limit is not None:
        for steps in found.steps:
            if steps.verdict is Verdict.TOO_FEW_STEPS:
                warn(f"--fail-if-slower: the {steps.phase} steps are too few to tell a slowdown from noise")
    with result_stream(output) as stream:
        report.draw(found, report_format, stream)
    return _exit_code(found, limit)


def _exit_code(found: Comparison, limit: float | None) -> ExitCode:
    if limit is None:
        return ExitCode.DONE
    reached = any(steps.slowdown is not None and steps.slowdown > limit for steps in found.steps)
    return ExitCode.THRESHOLD_REACHED if reached else ExitCode.DONE


def _fraction(text: str) -> float:
    found = _PERCENT.match(text.strip())
    if found is None:
        raise UsageError(f"--fail-if-slower {text}: is no percentage such as 3%")
    return float(found["number"]) / 100
