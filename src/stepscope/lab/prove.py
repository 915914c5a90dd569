"""What the rules say about recorded cases, beside what is true about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope import diagnose, units
from stepscope.errors import NotATraceError
from stepscope.lab import slowdowns, truth
from stepscope.lab.record import MODEL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from stepscope.document import Diagnosis, Finding
    from stepscope.lab.measure import StepTime
    from stepscope.lab.truth import Machine, Recording, Truth

SLIGHT = 0.02
"""What costs less of a step than this, timed without the profiler, may be found as info."""
NATURAL = "launch-bound"
"""What an eager step is by its nature."""

_HEADER = (
    *("slowdown", "requests", "pool", "mode", "without", "with", "cost"),
    *("must be found by", "rank", "found with it", "found without", "predicted without", "traced without", "error"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One way of running a case, diagnosed."""

    case: str
    mode: str
    truth: Truth
    found: frozenset[str]
    """Rules with a finding above info in any of its traces."""
    seen: frozenset[str]
    """Rules with any finding in any of its traces."""
    step_us: float | None
    """The traced step, on the trace's own clock."""
    predicted_us: Mapping[str, float]
    """The step without what a rule found, on that clock."""
    rank: Mapping[str, int]
    """Where each rule stands among the findings of the steps, from 1."""

    @property
    def recording(self) -> Recording:
        """The truth about this way of running it."""
        return self.truth.recordings[self.mode]

    def has_found(self, rule: str) -> bool:
        """Tell whether a rule speaks of the slowdown above info, or at all where it costs next to nothing."""
        step, without = self.recording.step, self.recording.step_without
        is_slight = without is not None and step.median_us - without.median_us < SLIGHT * step.median_us
        return rule in (self.seen if is_slight else self.found)


@dataclass(frozen=True, slots=True)
class Row:
    """What the rule that must find a slowdown said about one recording of it."""

    slowdown: str
    case: str
    rule: str
    found: bool
    """In any trace of the recording, above info; of what costs less than 2% of the step also as info."""
    rank: int | None
    """Among the findings of its steps, from 1; an eager step is launch-bound too."""
    predicted_us: float | None
    """The step without it, on the profiler's clock."""
    measured_us: float | None
    """The traced step of the healthy twin."""
    graph: bool


@dataclass(frozen=True, slots=True)
class Proof:
    """All verdicts on a set of cases."""

    verdicts: Sequence[Verdict]
    rules: Collection[str]
    """Those that exist."""

    def twin(self, verdict: Verdict) -> Verdict | None:
        """Return the verdict on the same requests with nothing switched on, if they are in the set."""
        name = verdict.truth.slowdown
        mode = (slowdowns.find(name).twin if name else None) or verdict.mode
        wanted = (verdict.truth.twin, mode)
        return next((other for other in self.verdicts if (other.case, other.mode) == wanted), None)

    def misses(self) -> Iterator[str]:
        """Yield a sentence for each rule that was silent where its cause is, or spoke where it is not."""
        for verdict in self.verdicts:
            found = slowdowns.find(verdict.truth.slowdown) if verdict.truth.slowdown else None
            wanted = {found.rule, *found.also} if found else set()
            where = f"`{verdict.case}`, {verdict.mode}"
            was_seen = verdict.truth.machine.gpu is not None  # without GPU work there is nothing to find
            if found and was_seen and found.rule in self.rules and not verdict.has_found(found.rule):
                yield f"{where}: `{found.rule}` is silent."
            allowed = wanted | ({NATURAL} if verdict.mode == "eager" else set())
            yield from (f"{where}: `{rule}` fires without cause." for rule in sorted(verdict.found - allowed))

    def markdown(self) -> Iterator[str]:
        """Yield the lines of `docs/accuracy.md`."""
        machines = dict.fromkeys(verdict.truth.machine for verdict in self.verdicts)
        yield from _INTRODUCTION
        yield from ("Recorded on", "")
        yield from (f"- {_machine(machine)}" for machine in machines)
        yield from ("", "## Slowdowns", "", f"| {' | '.join(_HEADER)} |", f"|{'---|' * len(_HEADER)}")
        slow = [verdict for verdict in self.verdicts if verdict.truth.slowdown]
        for verdict in slow:
            yield f"| {' | '.join(self._row(verdict))} |"
        yield from ("", "## Misses", "")
        yield from [f"- {miss}" for miss in self.misses()] or ["None."]
        unwritten = sorted({v.truth.rule for v in slow if v.truth.rule and v.truth.rule not in self.rules})
        if unwritten:
            named = ", ".join(f"`{rule}`" for rule in unwritten)
            yield from ("", f"Not written yet, and so silent: {named}.")
        yield from ("", "## What is switched on", "")
        for name in dict.fromkeys(verdict.truth.slowdown for verdict in slow):
            if name:
                first, *rest = slowdowns.explain(name).splitlines()
                yield from (f"**{name}.** {first}", *rest, "")

    def rows(self) -> Iterator[Row]:
        """Yield what was proved of each recording of a slowdown."""
        for verdict in self.verdicts:
            told = verdict.truth
            if told.slowdown is None or told.rule is None:
                continue
            twin = self.twin(verdict)
            yield Row(
                slowdown=told.slowdown,
                case=verdict.case,
                rule=told.rule,
                found=verdict.has_found(told.rule),
                rank=verdict.rank.get(told.rule),
                predicted_us=verdict.predicted_us.get(told.rule),
                measured_us=twin.step_us if twin else None,
                graph=verdict.mode == "graph",
            )

    def _row(self, verdict: Verdict) -> Iterator[str]:
        told, recording, twin = verdict.truth, verdict.recording, self.twin(verdict)
        added = f" + {told.new_tokens:,}" if told.new_tokens > 1 else ""
        yield told.slowdown or ""
        yield f"{len(told.contexts)} × {max(told.contexts):,}{added}"
        yield f"{told.pool_slots:,}"
        yield verdict.mode
        if recording.step_without is None:
            raise NotATraceError(f"{verdict.case}: the truth of a slowdown lacks the step without it")
        yield _time(recording.step_without)
        yield _time(recording.step)
        cost = recording.step.median_us - recording.step_without.median_us
        yield f"{units.time(cost)} ({cost / recording.step_without.median_us:+.1%})"
        yield f"`{told.rule}`" + ("" if told.rule in self.rules else ", not written yet")
        yield str(verdict.rank.get(told.rule or "", ""))
        yield _rules(verdict.found)
        yield _rules(twin.found) if twin else "not recorded"
        predicted = verdict.predicted_us.get(told.rule or "")
        traced = twin.step_us if twin else None
        yield "" if predicted is None else units.time(predicted)
        yield "" if predicted is None or traced is None else units.time(traced)
        yield "" if predicted is None or not traced else f"{predicted / traced - 1:+.1%}"


def prove(folder: Path, rules: Collection[str]) -> Proof:
    """Diagnose every case in a folder that `Recorder` wrote.

    Args:
        folder: the set.
        rules: ids of the rules that exist.

    Raises:
        NotATraceError: the folder holds no case, or one that cannot be read.
    """
    cases = sorted(path.parent for path in folder.glob(f"*/{truth.FILE}"))
    if not cases:
        raise NotATraceError(f"{folder}: holds no case that the laboratory recorded")
    return Proof([verdict for case in cases for verdict in _verdicts(case)], rules)


def _verdicts(case: Path) -> Iterator[Verdict]:
    told = truth.read(case)
    for mode, recording in told.recordings.items():
        traces = {kind: case / name for kind, name in recording.traces.items()}
        capture = traces.pop("capture", None)
        diagnosed = {kind: _diagnose(path, told, capture) for kind, path in traces.items()}
        steps = diagnosed["steps"]
        yield Verdict(
            case=case.name,
            mode=mode,
            truth=told,
            found=frozenset(found.rule for each in diagnosed.values() for found in each.findings if _counts(found)),
            seen=frozenset(found.rule for each in diagnosed.values() for found in each.findings),
            step_us=steps.steps[0].duration_us.median if steps.steps and steps.steps[0].duration_us else None,
            predicted_us={
                found.rule: found.what_if.step_us.expected for found in steps.findings if found.what_if is not None
            },
            rank={found.rule: place for place, found in enumerate(steps.findings, start=1)},
        )


def _diagnose(path: Path, told: Truth, capture: Path | None) -> Diagnosis:
    model = str(path.parent.parent / MODEL)
    return diagnose([path], model=model, tp=told.tp_slice, context=max(told.contexts), capture_trace=capture)


def _counts(found: Finding) -> bool:
    return found.severity != "info"


def _rules(found: Collection[str]) -> str:
    return ", ".join(f"`{rule}`" for rule in sorted(found)) or "nothing"


def _time(step: StepTime) -> str:
    return f"{units.time(step.median_us)} ({units.time(step.low_us)} to {units.time(step.high_us)})"


def _machine(machine: Machine) -> str:
    parts = {
        "driver": machine.driver,
        "CUDA": machine.cuda,
        "torch": machine.torch,
        "Triton": machine.triton,
        "Python": machine.python,
        "stepscope": machine.stepscope,
    }
    named = ", ".join(f"{name} {version}" for name, version in parts.items() if version)
    return f"{machine.gpu or 'no GPU: the traces hold no GPU work'}; {named}"


_INTRODUCTION = """\
# Accuracy

What the rules say about steps of which the truth is known. `stepscope lab record --all` ran a decode step shaped like
one rank of a model with each slowdown switched on and without it, and recorded both; `stepscope lab prove` diagnosed
the traces and wrote this part. Nothing in it is written by hand.

Times are medians with the 10th and the 90th percentile, by CUDA events and without the profiler, with and without in
turns in one process. *Found* are findings above info in any trace of the case: its steps, and where there are such,
the eager steps with stacks. Where a slowdown costs less than 2% of the step, a finding of info is no miss. *Predicted
without* is the what-if of the rule, *traced without* the step in the trace of the healthy twin; both are on the
profiler's clock. *Rank* is the rule's place among the findings. An eager step is launch-bound by nature and goes at the
host's pace, which varied by a factor of two in the course of minutes: of each eager case, slow or healthy, eight
recordings of four steps were made in a row, and the quickest was kept. The rows of rules are also in
`benchmarks/results/prove.json`.

""".splitlines()
