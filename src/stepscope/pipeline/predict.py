"""The steps after changes that were asked for by name: of rules, of kernels, of calls of the host."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope import units
from stepscope.document import PredictedChange, PredictedPhase, Prediction, Range, Spread, encodable
from stepscope.errors import UsageError
from stepscope.kernel_name import short_name
from stepscope.pipeline.detect.findings import RANGE, predicted_range
from stepscope.pipeline.detect.ladder import ladder
from stepscope.pipeline.detect.registry import all_rules
from stepscope.pipeline.detect.replays import can_predict
from stepscope.pipeline.steps import Phase
from stepscope.pipeline.whatif import MOST_ERROR, Change, chains, fused, host_time, only_launched
from stepscope.trace import intervals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.detect.rule import Case, Cause
    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps
    from stepscope.pipeline.summary import Examined

    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]

_REMOVED = f"the work is gone with the calls that launched only it, and nothing comes in its place; {RANGE}"
_CALLS = f"the host does not make these calls any more and goes on at once; {RANGE}"
_SCALED = f"the kernels take that part of their time and are launched as recorded; {RANGE}"
_LASTING = f"each of the kernels takes that long and is launched as recorded; {RANGE}"
_FUSED = f"each chain is one kernel that takes as long as its longest, launched once; {RANGE}"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A change under the name that it was asked for."""

    name: str
    change: Change
    assumption: str
    calls: Bools
    """Shape [launches]: calls of the host that launched nothing and are gone."""


def predict(
    examined: Examined, remove: Sequence[str], scale: Sequence[str] = (), fuse: Sequence[str] = ()
) -> Prediction:
    """Return the steps of every phase after the changes: each alone, and one after another.

    Args:
        examined: the trace.
        remove: rules that found something, or globs of names: of kernels and copies, or of calls of the host that
            launch nothing, such as `cudaStreamSynchronize`.
        scale: `glob=factor`: what the durations of such kernels and copies are multiplied by; or `glob=3us`, how long
            each takes.
        fuse: globs, `|` between them: such kernels become one where they follow each other on a stream.

    Raises:
        UsageError: nothing is asked for, or what is asked for is not in the steps.
    """
    check_changes(remove, scale, fuse)
    names = _Names.of(examined.linked, examined.steps)
    rules = {rule.id for rule in all_rules()}
    by_name = {name: names.removal(name) for name in remove if name not in rules}
    by_name |= {text: names.scaled(text) for text in scale}
    by_name |= {globs: names.fused(globs) for globs in fuse}
    every = (*remove, *scale, *fuse)
    phases = []
    met: set[str] = set()
    for case, detected in zip(examined.cases, examined.detected, strict=True):
        known = by_name | _by_rule(case, detected.causes)
        asked = [known[name] for name in dict.fromkeys(every) if name in known]
        asked = [each for each in asked if each.name in rules or _touches(case, examined.steps, each)]
        met |= {each.name for each in asked}
        phases.append(_phase(case, examined.steps, asked))
    for name in every:
        if name not in met:
            if name in fuse and examined.cases:
                raise UsageError(f"--fuse {name}: no two such kernels follow each other on a stream in a step")
            raise UsageError(_not_met(name, is_rule=name in rules, has_steps=bool(examined.cases)))
    return Prediction(trace=encodable(examined.linked.trace.path), complete=examined.complete, phases=phases)


def check_changes(remove: Sequence[str], scale: Sequence[str] = (), fuse: Sequence[str] = ()) -> None:
    """Refuse what can be refused without a trace.

    Raises:
        UsageError: nothing is asked for, or a factor is none.
    """
    if not remove and not scale and not fuse:
        raise UsageError("nothing to change: give --remove, --scale or --fuse")
    for text in scale:
        _Scale.of(text)


@dataclass(frozen=True, slots=True)
class _Scale:
    """What kernels of some names take: a factor of their time, or a duration."""

    glob: str
    factor: float | None
    duration_us: float | None

    @classmethod
    def of(cls, text: str) -> _Scale:
        """Read `glob=0.5`, or `glob=3us`."""
        glob, _, amount = text.rpartition("=")
        told = re.fullmatch(r"([0-9.]+(?:e-?[0-9]+)?)(ns|us|µs|ms)?", amount.strip(), re.IGNORECASE)
        try:
            number = float(told[1]) if told else -1.0
        except ValueError:
            number = -1.0
        if not told or not glob or not isfinite(number) or number < 0:
            raise UsageError(f"--scale {text}: give GLOB=FACTOR or GLOB=DURATION, such as '*gemm*=0.5' or '*cast*=3us'")
        scale = cls(glob, number, None) if told[2] is None else cls(glob, None, number * _UNITS_US[told[2].lower()])
        if (scale.factor or 0.0) > _MOST_FACTOR or (scale.duration_us or 0.0) > _MOST_US:
            raise UsageError(f"--scale {text}: at most {_MOST_FACTOR:,} times as long, or an hour, can be asked for")
        return scale


_MOST_FACTOR = 1_000_000
_MOST_US = 3_600e6
_UNITS_US = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3}


def _not_met(name: str, *, is_rule: bool, has_steps: bool) -> str:
    if not has_steps:
        return f"{name}: the trace has no steps with GPU work, so there is nothing to change"
    if is_rule:
        return f"--remove {name}: the rule found nothing in this trace"
    return f"{name}: names no rule, and no kernel or call of the host in the steps"


@dataclass(frozen=True, slots=True)
class _Names:
    """What a glob may mean."""

    linked: Linked
    steps: Steps
    kernels: pl.Series
    calls: pl.Series
    launched: Bools
    """Shape [launches]: whether the call launched GPU work."""

    @classmethod
    def of(cls, linked: Linked, steps: Steps) -> _Names:
        """Look up the names of a trace."""
        launched = np.zeros(linked.trace.launches.height, dtype=np.bool_)
        launched[linked.kernels["launch"].drop_nulls().to_numpy()] = True
        kernels, calls = (table["name"].cast(pl.String) for table in (linked.kernels, linked.trace.launches))
        return cls(linked, steps, kernels, calls, launched)

    def removal(self, glob: str) -> _Asked:
        """Return the change that takes out what the glob matches, with the calls that launched nothing else."""
        removed, calls = _matching(self.kernels, glob), _matching(self.calls, glob) & ~self.launched
        host = host_time(self.linked, calls | only_launched(self.linked, removed))
        return _Asked(glob, Change(removed, host_gone=host), _REMOVED if removed.any() else _CALLS, calls)

    def scaled(self, text: str) -> _Asked:
        """Return the change of the durations of what the glob matches."""
        scale = _Scale.of(text)
        meant = _matching(self.kernels, scale.glob)
        if scale.factor is not None:
            return _Asked(text, Change.scaled(meant, scale.factor), _SCALED, self._no_calls())
        recorded = self.linked.kernels["duration_ns"].to_numpy()
        change = Change.lasting(meant, (scale.duration_us or 0.0) * 1e3, recorded)
        return _Asked(text, change, _LASTING, self._no_calls())

    def fused(self, globs: str) -> _Asked:
        """Return the change that makes one kernel of each chain of those that any of the globs matches."""
        meant = np.any([_matching(self.kernels, glob) for glob in globs.split("|")], axis=0)
        change = fused(self.linked, chains(self.linked, meant, self.steps.step_of_kernel))
        return _Asked(globs, change, _FUSED, self._no_calls())

    def _no_calls(self) -> Bools:
        return np.zeros(self.launched.shape, dtype=np.bool_)


def _matching(names: pl.Series, glob: str) -> Bools:
    """Tell which names the glob matches, as they are recorded or as reports shorten them."""
    matches = re.compile(translate(glob)).match
    meant = [name for name in names.unique() if matches(name) or matches(short_name(name))]
    return names.is_in(meant).to_numpy().astype(np.bool_)


def _by_rule(case: Case, causes: Mapping[str, Cause]) -> dict[str, _Asked]:
    no_calls = np.zeros(case.linked.trace.launches.height, dtype=np.bool_)
    return {
        rule: _Asked(rule, cause.change, f"{cause.assumption}; {RANGE}", no_calls)
        for rule, cause in causes.items()
        if cause.change is not None
    }


def _touches(case: Case, steps: Steps, asked: _Asked) -> bool:
    """Tell whether a change is about these steps."""
    return asked.change.launches_free or _calls_per_step(case, steps, asked) > 0


def _phase(case: Case, steps: Steps, asked: Sequence[_Asked]) -> PredictedPhase:
    measured, withheld = case.measured, None
    if not can_predict(case):
        missed = f"the replay misses the recorded steps by {units.share(case.replay_error)}"
        withheld = f"{missed}, more than {units.share(MOST_ERROR)}"
        asked = ()
    tokens = _tokens(case)
    return PredictedPhase(
        phase=case.phase,
        steady=len(case.step_indices),
        batch_size=case.step.batch_size,
        duration_us=_spread(measured.duration_us),
        gpu_span_us=_spread(measured.gpu_span_us),
        unprofiled_duration_us=None if withheld else case.unprofiled_us(),
        tokens_per_s=None if tokens is None or not measured.step_us else tokens * 1e6 / measured.step_us,
        withheld=withheld,
        changes=[_predicted(case, steps, each, tokens) for each in asked],
        ladder=list(ladder(case, 0, ((each.name, each.change) for each in asked))),
    )


def _predicted(case: Case, steps: Steps, asked: _Asked, tokens: int | None) -> PredictedChange:
    after = case.timeline.replay(case.step_indices, asked.change)
    today = case.measured.step_us
    step_us = predicted_range(case.measured.duration_us, after.duration_us)
    return PredictedChange(
        change=asked.name,
        calls_per_step=_calls_per_step(case, steps, asked),
        time_us_per_step=_covered_us(case, steps, asked.change),
        step_us=step_us,
        gpu_span_us=predicted_range(case.measured.gpu_span_us, after.gpu_span_us),
        unprofiled_step_us=case.unprofiled_us(asked.change),
        tokens_per_s=_rate(tokens, step_us),
        gain_fraction=(today - step_us.expected) / today if today else 0.0,
        assumption=asked.assumption,
    )


def _tokens(case: Case) -> int | None:
    """Return the tokens that a step is for: those it computes, in decode one a request."""
    return case.step.batch_size if case.phase == Phase.DECODE else case.step.tokens


def _rate(tokens: int | None, step_us: Range) -> Range | None:
    if tokens is None or not step_us.low:
        return None
    low, expected, high = (tokens * 1e6 / us for us in (step_us.high, step_us.expected, step_us.low))
    return Range(low=low, expected=expected, high=high)


def _meant(case: Case, steps: Steps, change: Change) -> Bools:
    """Return which kernels of the steps a change is about."""
    return change.touched & steps.rows(case.step_indices)


def _calls_per_step(case: Case, steps: Steps, asked: _Asked) -> float:
    calls = case.linked.trace.launches["start_ns"].to_numpy()[asked.calls]
    made = np.isin(steps.at(calls), case.step_indices).sum()
    return float(made + _meant(case, steps, asked.change).sum()) / len(case.step_indices)


def _covered_us(case: Case, steps: Steps, change: Change) -> float:
    meant = np.flatnonzero(_meant(case, steps, change))
    start = case.linked.kernels["start_ns"].to_numpy()[meant]
    end = start + case.linked.kernels["duration_ns"].to_numpy()[meant]
    covered = intervals.covered_by_group(start, end, steps.step_of_kernel[meant], len(steps.steps))
    return float(np.median(covered[list(case.step_indices)])) / 1e3


def _spread(values: Floats) -> Spread:
    return Spread(min=float(values.min()), median=float(np.median(values)), max=float(values.max()))
