"""What a comparison says, as lines and tables that every format draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope import units
from stepscope.document import Verdict
from stepscope.kernel_name import short_names
from stepscope.report import sentences
from stepscope.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.document import (
        ClassDelta,
        Comparison,
        FindingDelta,
        Foretold,
        KernelDelta,
        Spread,
        StepDelta,
        WaterfallDelta,
        WorkSide,
    )

SHOWN_KERNELS = 10
NEGLIGIBLE_SHARE = 0.001
"""Parts that differ by less than this fraction of BEFORE's step are folded into one row."""
IDLE = "idle"
NONE = "-"
"""In place of a figure of what does not run."""


class Section(NamedTuple):
    """A title, lines of text and a table; any of the last two may be empty."""

    title: str
    lines: Sequence[str] = ()
    header: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    texts: frozenset[int] = frozenset({0})
    """Columns of text, which stand to the left and may be broken."""


def inputs(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield what must be known of the two traces, each with its label."""
    for name, diagnosis in (("BEFORE", comparison.before), ("AFTER", comparison.after)):
        for trace in diagnosis.traces:
            yield name, sentences.trace_line(trace)
            for row in trace.warnings:
                if not row.is_note:
                    yield name, f"warning: {printable(row.message)}"
    for note in comparison.notes:
        yield "note", printable(note)
    for unpaired in comparison.unpaired:
        steps = f"{unpaired.count:,} {unpaired.phase} step{'' if unpaired.count == 1 else 's'}"
        batch = f" of batch {unpaired.batch_size:,}" if unpaired.batch_size is not None else ""
        place = _place(comparison, unpaired.trace)
        yield "note", f"only {unpaired.side.upper()} holds {steps}{batch}{place}: compared with nothing"


def sections(comparison: Comparison) -> Iterator[Section]:
    """Yield all sections, in order: those of each pair of steps, then the findings and the prediction."""
    for steps in comparison.steps:
        yield Section(_name(steps) + _place(comparison, steps.trace), list(_step_lines(steps)))
        yield _waterfall(comparison, steps)
        kernels = _kernels(comparison, steps)
        if kernels.rows:
            yield kernels
    yield _findings(comparison)
    if comparison.prediction is not None:
        yield _prediction(comparison)


def _name(steps: StepDelta) -> str:
    batch = steps.before.batch_size if steps.before.batch_size is not None else steps.after.batch_size
    return f"{steps.phase} steps" + (f", batch {batch:,}" if batch is not None else "")


def _step_lines(steps: StepDelta) -> Iterator[str]:
    before, after = steps.before, steps.after
    yield _difference("step", before.duration_us, after.duration_us, steps, is_span=False)
    yield _difference("GPU span", before.gpu_span_us, after.gpu_span_us, steps, is_span=True)
    yield (
        f"BEFORE holds {before.count:,}, {before.timed:,} timed: {_spread(before.duration_us)};"
        f" AFTER {after.count:,}, {after.timed:,} timed: {_spread(after.duration_us)}"
    )


def _difference(name: str, before: Spread, after: Spread, steps: StepDelta, *, is_span: bool) -> str:
    delta = steps.gpu_span_delta_us if is_span else steps.delta_us
    verdict = steps.gpu_span_verdict if is_span else steps.verdict
    text = f"{name} {units.time(before.median)} → {units.time(after.median)}, {units.change(delta.expected)}"
    within = f"{units.change(delta.low)} to {units.change(delta.high)}"
    if verdict is Verdict.TOO_FEW_STEPS:
        return f"{text}: too few steps to tell it from noise; single steps differ by {within}"
    share = f" ({units.share(abs(delta.expected) / before.median)})" if before.median else ""
    if verdict is Verdict.NO_DIFFERENCE:
        return f"{text}: no difference beyond noise (95%: {within})"
    return f"{text}: {verdict}{share}, 95%: {within}"


def _spread(spread: Spread) -> str:
    if spread.min == spread.max:
        return units.time(spread.min)
    return f"{units.time(spread.min)} to {units.time(spread.max)}"


def _waterfall(comparison: Comparison, steps: StepDelta) -> Section:
    rows = [row for row in comparison.waterfall if _of(row, steps)]
    classes = [row for row in comparison.by_class if _of(row, steps)]
    calls = {row.kernel_class: _calls(row.before, row.after) for row in classes}
    before, after = steps.before.duration_us.median, steps.after.duration_us.median
    shown = [row for row in rows if row.name == IDLE or abs(row.delta_us) >= NEGLIGIBLE_SHARE * before]
    folded = [row for row in rows if row not in shown]
    table = [_part(row.name, row.before_us, row.after_us, calls.get(row.name, "")) for row in shown]
    if folded:
        name = f"{len(folded)} other{'' if len(folded) == 1 else 's'}"
        table.insert(-1, _part(name, sum(row.before_us for row in folded), sum(row.after_us for row in folded)))
    table.append(_part("step", before, after))
    header = ("kernel class", "before", "after", "change", "calls a step")
    return Section(_question(steps), (), header, table)


def _part(name: str, before_us: float, after_us: float, calls: str = "") -> tuple[str, ...]:
    return name, units.time(before_us), units.time(after_us), units.change(after_us - before_us), calls


def _question(steps: StepDelta) -> str:
    moved = units.time(abs(steps.delta_us.expected))
    if steps.verdict is Verdict.FASTER:
        return f"Where did the {moved} go?"
    return f"Where do the {moved} come from?" if steps.verdict is Verdict.SLOWER else "The steps by kernel class"


def _kernels(comparison: Comparison, steps: StepDelta) -> Section:
    rows = [row for row in comparison.by_kernel if _of(row, steps)]
    before = steps.before.duration_us.median
    shown = [row for row in rows if abs(row.delta_us) >= NEGLIGIBLE_SHARE * before][:SHOWN_KERNELS]
    short = short_names([name for row in shown for name in (row.kernel, row.renamed_to) if name])
    table = [
        (
            printable(short[row.kernel] + (f", now {short[row.renamed_to]}" if row.renamed_to else "")),
            _time(row.before),
            _time(row.after),
            units.change(row.delta_us),
            _calls(row.before, row.after),
        )
        for row in shown
    ]
    return Section("Kernels that changed most", (), ("kernel", "before", "after", "change", "calls"), table)


def _findings(comparison: Comparison) -> Section:
    found = comparison.findings
    kinds = (("gone", found.gone), ("new", found.new), ("changed", found.changed), ("cannot tell", found.cannot_tell))
    rows = [
        (
            kind + _place(comparison, row.trace),
            row.rule,
            row.phase,
            _severities(row),
            _time(row.before),
            _time(row.after),
        )
        for kind, of in kinds
        for row in of
    ]
    lines = []
    if found.unchanged:
        names = [f"{row.rule} ({row.phase}){_place(comparison, row.trace)}" for row in found.unchanged]
        lines.append(f"Unchanged: {', '.join(names)}.")
    if found.cannot_tell:
        lines.append("Cannot tell: one trace shows it, and the other cannot answer whether it is there.")
    if not rows:
        lines.insert(0, "None is gone, new or changed.")
    header = ("became", "rule", "phase", "severity", "before", "after")
    return Section("Findings", lines, header, rows, frozenset({0, 1, 2, 3}))


def _severities(row: FindingDelta) -> str:
    old, new = row.severity_before or NONE, row.severity_after or NONE
    return str(old) if old == new else f"{old} → {new}"


def _prediction(comparison: Comparison) -> Section:
    found = comparison.prediction
    assert found is not None  # noqa: S101 -- the caller checked
    rows = [_foretold("step", found.step), _foretold("GPU span", found.gpu_span)]
    batch = f", batch {found.batch_size:,}" if found.batch_size is not None else ""
    place = _place(comparison, found.trace)
    return Section(
        f"BEFORE's what-if without {' and '.join(found.rules)} ({found.phase}{batch}){place}, and what AFTER measured",
        [
            _verdict("step", found.step),
            _verdict("GPU span", found.gpu_span),
            f"It assumed: {printable(found.assumption)}.",
        ],
        ("what", "before", "expected", "range, ms", "measured", "unexplained"),
        rows,
    )


def _foretold(name: str, row: Foretold) -> tuple[str, ...]:
    expected = row.predicted_us
    return (
        name,
        *_in_ms(row.before_us, expected.expected),
        f"{_ms(expected.low)} to {_ms(expected.high)}",
        *_in_ms(row.measured_us),
        f"{row.unexplained_us / 1e3:+,.2f} ms",
    )


def _in_ms(*values: float) -> Iterator[str]:
    return (f"{_ms(value)} ms" for value in values)


def _ms(us: float) -> str:
    return f"{us / 1e3:,.2f}"


def _verdict(name: str, row: Foretold) -> str:
    beyond = f"{abs(row.unexplained_us) / 1e3:,.2f} ms {'more' if row.unexplained_us >= 0 else 'less'} than expected"
    return f"MISS: the {name} is {beyond}, outside the range." if row.is_miss else f"The {name} is within the range."


def _of(row: WaterfallDelta | ClassDelta | KernelDelta, steps: StepDelta) -> bool:
    return (row.trace, row.phase, row.batch_size) == (steps.trace, steps.phase, steps.before.batch_size)


def _place(comparison: Comparison, trace: int) -> str:
    """Return in which pair of traces something is, where there are several."""
    name = sentences.trace_name(comparison.before, trace)
    return f" in {name}" if name else ""


def _time(side: WorkSide | None) -> str:
    return NONE if side is None else units.time(side.time_us_per_step)


def _calls(before: WorkSide | None, after: WorkSide | None) -> str:
    old, new = (_count(side) for side in (before, after))
    return old if old == new else f"{old} → {new}"


def _count(side: WorkSide | None) -> str:
    return NONE if side is None or side.calls_per_step is None else units.count(side.calls_per_step)
