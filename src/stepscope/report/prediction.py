"""The steps after changes, as `stepscope what-if` prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import units
from stepscope.report.formats import draw_as
from stepscope.report.markdown import escaped, table
from stepscope.report.sentences import ladder_line
from stepscope.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from rich.console import Console

    from stepscope.document import PredictedChange, PredictedPhase, Prediction, Range
    from stepscope.report import Format

_HEADER = ("without, or faster", "calls a step", "GPU time", "step", "gained", "GPU span", "tokens/s", "unprofiled")


def draw(prediction: Prediction, report_format: Format, stream: TextIO) -> None:
    """Write the predicted steps to a stream."""
    draw_as(report_format, prediction, stream, terminal=_terminal, markdown=_markdown)


def _terminal(prediction: Prediction, console: Console) -> None:
    console.print(printable(prediction.trace), style="bold")
    for phase in prediction.phases:
        console.print()
        console.print(printable(_today(phase)))
        for one, row in zip(phase.changes, _rows(phase), strict=True):
            console.print()
            console.print(printable(_heading(one)), style="bold")
            text = f"step {row[3]}, {row[4]} gained; GPU span {row[5]}"
            text += f"; {row[6]} tokens/s" if row[6] else ""
            text += f"; about {row[7]} without the profiler" if row[7] else ""
            console.print(printable(text))
        console.print()
        for line in _lines(prediction, phase):
            console.print(printable(line))


def _markdown(prediction: Prediction) -> Iterator[str]:
    yield f"# What if: {escaped(prediction.trace)}"
    for phase in prediction.phases:
        yield from ("", escaped(_today(phase)), "")
        if phase.changes:
            yield from table(_HEADER, _rows(phase))
        for line in _lines(prediction, phase):
            yield from ("", escaped(line))


def _today(phase: PredictedPhase) -> str:
    batch = "" if phase.batch_size is None else f", batch {phase.batch_size:,}"
    text = f"{phase.phase}{batch}, {phase.steady} steady steps: today {units.time(phase.duration_us.median)} a step"
    text += f" (GPU span {units.time(phase.gpu_span_us.median)})"
    if phase.unprofiled_duration_us is not None:
        text += f", about {units.time(phase.unprofiled_duration_us)} without the profiler"
    return text if phase.tokens_per_s is None else f"{text}, {phase.tokens_per_s:,.1f} tokens/s"


def _heading(one: PredictedChange) -> str:
    """Name a change, with the work that it is about, if it is about any."""
    if not one.calls_per_step:
        return one.change
    gpu = f", {units.time(one.time_us_per_step)} of GPU time" if one.time_us_per_step else ""
    return f"{one.change} ({units.calls(one.calls_per_step)}{gpu} a step)"


def _rows(phase: PredictedPhase) -> Iterator[tuple[str, ...]]:
    for one in phase.changes:
        rate, unprofiled = one.tokens_per_s, one.unprofiled_step_us
        yield (
            one.change,
            units.count(one.calls_per_step),
            units.time(one.time_us_per_step),
            _range(one.step_us),
            units.share(one.gain_fraction),
            units.time(one.gpu_span_us.expected),
            "" if rate is None else f"{rate.expected:,.1f}",
            "" if unprofiled is None else units.time(unprofiled),
        )


def _range(step: Range) -> str:
    return f"{units.time(step.expected)} ({units.time(step.low)} to {units.time(step.high)})"


def _lines(prediction: Prediction, phase: PredictedPhase) -> Iterator[str]:
    if phase.withheld is not None:
        yield f"Nothing is predicted: {phase.withheld}."
    elif not phase.changes:
        yield "Nothing of what is to be changed is in these steps."
    if len(phase.ladder) > 1:
        yield f"One after another: {ladder_line(phase.duration_us.median, phase.ladder, 'after')}."
    for one in phase.changes:
        yield f"{one.change} assumes: {one.assumption}."
    if not prediction.complete:
        yield "The trace is incomplete: a gap, and so a gain, may be work that was not recorded."
