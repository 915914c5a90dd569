"""`stepscope rules`: the list of rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from stepscope.cli import options
from stepscope.cli.output import check_writable, result_stream
from stepscope.errors import ExitCode
from stepscope.report import Format
from stepscope.report.console import console_on
from stepscope.report.json import write

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from stepscope.pipeline.detect.rule import Rule


def rules(*, report_format: options.ReportFormat = Format.TERMINAL, output: options.Output = None) -> ExitCode:
    """List the rules and what each finds; as JSON or Markdown also what a trace must hold for it."""
    from stepscope.pipeline.detect.registry import all_rules  # noqa: PLC0415 -- loads polars

    check_writable(output)
    listed = sorted(all_rules(), key=lambda rule: rule.id)
    with result_stream(output) as stream:
        if report_format is Format.JSON:
            write(_document(listed), stream)
        elif report_format is Format.MARKDOWN:
            stream.writelines(_markdown(listed))
        else:
            _draw(listed, stream)
    return ExitCode.DONE


def _document(listed: Sequence[Rule]) -> dict[str, object]:
    return {
        "rules": [
            {"id": rule.id, "title": rule.title, "phases": list(rule.phases), "needs": list(rule.needs)}
            for rule in listed
        ]
    }


def _markdown(listed: Sequence[Rule]) -> list[str]:
    head = ["| rule | what it finds | needs |\n", "|---|---|---|\n"]
    return head + [f"| `{rule.id}` | {rule.title} | {'; '.join(rule.needs)} |\n" for rule in listed]


def _draw(listed: Sequence[Rule], stream: TextIO) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("rule", "what it finds"):
        table.add_column(name)
    for rule in listed:
        table.add_row(rule.id, rule.title)
    with console_on(stream) as console:
        console.print(table)
