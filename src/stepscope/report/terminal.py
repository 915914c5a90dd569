"""A diagnosis for a terminal: readable at 80 columns and without colour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepscope import units
from stepscope.document import Severity
from stepscope.report import sentences
from stepscope.report.console import console_on, plain_table
from stepscope.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO

    from rich.console import Console

    from stepscope.document import Diagnosis, Finding, StepSummary

_STYLES = {
    Severity.CRITICAL: "bold red",
    Severity.MAJOR: "bold yellow",
    Severity.MINOR: "bold cyan",
    Severity.INFO: "dim",
}
_SHOWN_CLASSES = 8
_SHOWN_KERNELS = 6


def draw(diagnosis: Diagnosis, stream: TextIO) -> None:
    """Write the diagnosis to a stream, in colour where it is a terminal that shows colour."""
    with console_on(stream) as console:
        _draw(diagnosis, console)


def _draw(diagnosis: Diagnosis, console: Console) -> None:
    for trace in diagnosis.traces:
        console.print(sentences.trace_line(trace), style="bold")
        for row in sentences.trace_rows(trace):
            console.print(_labelled([row]))
    _context(console, diagnosis)
    for step in diagnosis.steps:
        _steps(console, diagnosis, step)
    shown = [finding for finding in diagnosis.findings if not sentences.is_folded(finding)]
    _heading(console, "Findings" if shown else sentences.no_findings(diagnosis))
    for number, finding in enumerate(shown, 1):
        if number > 1:
            console.print()
        _finding(console, diagnosis, number, finding)
    for line in sentences.ladder_lines(diagnosis):
        console.print()
        console.print(line)
    folded = [finding for finding in diagnosis.findings if sentences.is_folded(finding)]
    if folded:
        console.print(f"Also seen: {', '.join(map(sentences.folded_line, folded))}.")
    if diagnosis.ruled_out:
        _heading(console, "Ruled out, or undecided")
        _ruled_out(console, diagnosis)
    if diagnosis.could_not_check:
        _heading(console, "Could not check")
        console.print(_labelled(("\n".join(of), line) for of, line in sentences.unchecked_rows(diagnosis)))


def _context(console: Console, diagnosis: Diagnosis) -> None:
    if diagnosis.model is not None:
        console.print(Text(f"model {sentences.model_line(diagnosis.model)}"))
        console.print(_labelled(("note", printable(note)) for note in diagnosis.model.notes))
    hardware = diagnosis.hardware
    if hardware is not None and hardware.memory_gb_per_s is not None:
        measured = hardware.memory_measured_gb_per_s
        rates = f"{units.rate(hardware.memory_gb_per_s)} datasheet"
        rates += f", {units.rate(measured)} measured" if measured is not None else ""
        console.print(f"GPU {printable(hardware.name)} (memory {rates})")


def _steps(console: Console, diagnosis: Diagnosis, step: StepSummary) -> None:
    console.print()
    name = sentences.trace_name(diagnosis, step.trace)
    console.print(f"{name}: {sentences.step_line(step)}" if name else sentences.step_line(step))
    rows = [
        (
            row.kernel_class,
            units.time(row.time_us_per_step),
            units.share(row.share_of_step),
            units.count(row.calls_per_step),
        )
        for row in diagnosis.breakdown
        if (row.trace, row.phase) == (step.trace, step.phase)
    ]
    table = plain_table(("kernel class", "time a step", "share", "calls a step"), rows[:_SHOWN_CLASSES])
    console.print(Padding(table, (0, 0, 0, 2)))
    _kernels(console, diagnosis, step)


def _kernels(console: Console, diagnosis: Diagnosis, step: StepSummary) -> None:
    rows = sentences.longest_kernels(diagnosis, step, _SHOWN_KERNELS)
    if rows:
        table = plain_table(sentences.KERNEL_HEADER, rows, keeps_numbers_whole=True)
        console.print(Padding(table, (0, 0, 0, 2)))


def _finding(console: Console, diagnosis: Diagnosis, number: int, finding: Finding) -> None:
    head = Text(f"{number}. ")
    head.append(finding.severity.upper(), style=_STYLES[finding.severity])
    head.append(f" {finding.rule}", style="bold")
    head.append(f" ({finding.phase}, {finding.confidence} confidence)")
    name = sentences.trace_name(diagnosis, finding.trace)
    if name:
        head.append(f" in {name}")
    console.print(head)
    console.print(Padding(Text(printable(finding.title)), (0, 0, 0, 3)))
    console.print(_labelled(sentences.finding_rows(diagnosis, finding)))


def _ruled_out(console: Console, diagnosis: Diagnosis) -> None:
    places = list(dict.fromkeys((row.trace, row.phase) for row in diagnosis.ruled_out))
    for trace, phase in places:
        if len(places) > 1:
            name = sentences.trace_name(diagnosis, trace)
            console.print(f"{phase} in {name}" if name else phase)
        rows = [row for row in diagnosis.ruled_out if (row.trace, row.phase) == (trace, phase)]
        console.print(_labelled(sentences.ruled_out_rows(rows)))


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(text, style="bold underline")


def _labelled(rows: Iterable[tuple[str, str]]) -> Padding:
    """Lay out labels beside wrapped text; a label that repeats is shown once."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    last = None
    for label, text in rows:
        table.add_row("" if label == last else label, Text(text))
        last = label
    return Padding(table, (0, 0, 0, 3))
