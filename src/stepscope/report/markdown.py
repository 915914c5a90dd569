"""A diagnosis as Markdown, to paste into an issue."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stepscope import units
from stepscope.report import sentences
from stepscope.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TextIO

    from stepscope.document import Diagnosis, Finding, StepSummary

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$@&])")

_SHOWN_KERNELS = 12


def draw(diagnosis: Diagnosis, stream: TextIO) -> None:
    """Write the diagnosis to a stream."""
    stream.write("\n".join(_lines(diagnosis)) + "\n")


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", printable(text))


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield from ("# stepscope diagnosis", "")
    yield from _inputs(diagnosis)
    for step in diagnosis.steps:
        yield from _steps(diagnosis, step)
    shown = [finding for finding in diagnosis.findings if not sentences.is_folded(finding)]
    yield from ("", "## Findings" if shown else f"## {sentences.no_findings(diagnosis)}")
    for number, finding in enumerate(shown, 1):
        yield from _finding(diagnosis, number, finding)
    for line in sentences.ladder_lines(diagnosis):
        yield from ("", escaped(line))
    folded = [finding for finding in diagnosis.findings if sentences.is_folded(finding)]
    if folded:
        yield from ("", f"Also seen: {escaped(', '.join(map(sentences.folded_line, folded)))}.")
    if diagnosis.ruled_out:
        yield from ("", "## Ruled out, or undecided", "")
        yield from _ruled_out(diagnosis)
    if diagnosis.could_not_check:
        yield from ("", "## Could not check", "")
        for of, line in sentences.unchecked_rows(diagnosis):
            yield f"- **{escaped(', '.join(of))}**: {escaped(line)}"


def _inputs(diagnosis: Diagnosis) -> Iterator[str]:
    for trace in diagnosis.traces:
        yield f"- {escaped(sentences.trace_line(trace))}"
        for label, text in sentences.trace_rows(trace):
            yield f"  - {label}: {escaped(text)}"
    if diagnosis.model is not None:
        yield f"- model: {escaped(sentences.model_line(diagnosis.model))}"
        yield from (f"  - {escaped(note)}" for note in diagnosis.model.notes)
    if diagnosis.hardware is not None:
        yield f"- GPU: {escaped(diagnosis.hardware.name)}"


def _steps(diagnosis: Diagnosis, step: StepSummary) -> Iterator[str]:
    name = sentences.trace_name(diagnosis, step.trace)
    place = f"{name}: " if name else ""
    yield from ("", f"**{escaped(place + sentences.step_line(step))}**", "")
    rows = [row for row in diagnosis.breakdown if (row.trace, row.phase) == (step.trace, step.phase)]
    yield from table(
        ("kernel class", "time a step", "share", "calls a step"),
        (
            (
                row.kernel_class,
                units.time(row.time_us_per_step),
                units.share(row.share_of_step),
                units.count(row.calls_per_step),
            )
            for row in rows
        ),
    )
    kernels = sentences.longest_kernels(diagnosis, step, _SHOWN_KERNELS)
    if kernels:
        yield ""
        yield from table(sentences.KERNEL_HEADER, kernels)


def _ruled_out(diagnosis: Diagnosis) -> Iterator[str]:
    places = dict.fromkeys((row.trace, row.phase) for row in diagnosis.ruled_out)
    rows = [
        (suspect, phase, sentences.trace_name(diagnosis, trace) or "", why)
        for trace, phase in places
        for suspect, why in sentences.ruled_out_rows(
            [row for row in diagnosis.ruled_out if (row.trace, row.phase) == (trace, phase)]
        )
    ]
    if len(diagnosis.traces) == 1:
        yield from table(("suspect", "phase", "why"), ((suspect, phase, why) for suspect, phase, _, why in rows))
    else:
        yield from table(("suspect", "phase", "trace", "why"), rows)


def _finding(diagnosis: Diagnosis, number: int, finding: Finding) -> Iterator[str]:
    yield from ("", f"### {number}. {finding.severity}: {escaped(finding.title)}", "")
    name = sentences.trace_name(diagnosis, finding.trace)
    place = f" in {escaped(name)}" if name else ""
    yield f"`{finding.rule}`, {finding.phase}, {finding.confidence} confidence{place}"
    yield ""
    for label, text in sentences.finding_rows(diagnosis, finding):
        yield f"- **{label}**: {escaped(text)}"


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table; its header is text that needs no escaping."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(map(escaped, row))} |"
