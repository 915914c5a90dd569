"""`stepscope explain`: a rule's own documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.markdown import Markdown

from stepscope.cli import options
from stepscope.cli.output import check_writable, result_stream
from stepscope.errors import ExitCode
from stepscope.report import Format
from stepscope.report.console import console_on
from stepscope.report.json import write

if TYPE_CHECKING:
    from stepscope.pipeline.detect.rule import Rule


def explain(
    rule: Annotated[str, Parameter(help="A rule's id, as `stepscope rules` lists them.")],
    /,
    *,
    report_format: options.ReportFormat = Format.TERMINAL,
    output: options.Output = None,
) -> ExitCode:
    """Say what a rule looks for, why it happens, what is harmless, and how to fix it."""
    from stepscope.pipeline.detect.registry import rule as find_rule  # noqa: PLC0415 -- loads polars

    check_writable(output)
    found = find_rule(rule)
    with result_stream(output) as stream:
        if report_format is Format.JSON:
            write(_document(found), stream)
        elif report_format is Format.MARKDOWN:
            stream.write(_markdown(found))
        else:
            with console_on(stream) as console:
                console.print(Markdown(_markdown(found)))
    return ExitCode.DONE


def _document(rule: Rule) -> dict[str, object]:
    return {
        "id": rule.id,
        "title": rule.title,
        "phases": list(rule.phases),
        "needs": list(rule.needs),
        "explanation": rule.explanation,
    }


def _markdown(rule: Rule) -> str:
    needs, phases = "; ".join(rule.needs), ", ".join(rule.phases)
    return f"# {rule.id}\n\n{rule.explanation.rstrip()}\n\n## Judged\nIn phases {phases}. Needs {needs}.\n"
