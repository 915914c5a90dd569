"""Write docs/accuracy.md and benchmarks/results/prove.json: what rules and replay say about recorded slowdowns.

Run in the repository: python scripts/accuracy.py. The traces in ../shared/traces are needed besides those in tests.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY)]  # the built traces are the tests'

from scripts import precision  # noqa: E402
from tests import published_cases  # noqa: E402

from stepscope import load, units, what_if  # noqa: E402
from stepscope.errors import NotATraceError  # noqa: E402
from stepscope.pipeline.link import link  # noqa: E402
from stepscope.pipeline.steps import find_steps  # noqa: E402
from stepscope.pipeline.whatif import GPU_SLOWDOWN, Profiler, Timeline  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.kineto import Kineto

    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps

PAGE = REPOSITORY / "docs/accuracy.md"
SHARED = REPOSITORY.parent / "shared/traces"
LAB = REPOSITORY / "tests/traces"
HEADING = "# The replay"
H200, SGLANG = "h200-decode", "sglang-h200"
UNPROFILED_US = {
    f"{H200}/eager-cast.json.gz": 76_200.0,
    f"{H200}/eager-gather.json.gz": 76_200.0,
    f"{H200}/graph-cast.json.gz": 74_340.0,
    f"{H200}/graph-gather.json.gz": 9_990.0,
    f"{SGLANG}/flashinfer-fp8-graph.trace.json.gz": 77_590.0,
    f"{SGLANG}/flashinfer-bf16-graph.trace.json.gz": 10_850.0,
    f"{SGLANG}/flashinfer-fp8-eager-stacks.trace.json.gz": 137_600.0,
}
"""Median steps as the README beside the traces tells them."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """One phase of a trace, recorded and replayed without a change; µs, medians."""

    trace: str
    phase: str
    steps: int
    step_us: tuple[float, float]
    span_us: tuple[float, float]
    unprofiled_us: float | None
    """Estimated."""

    @property
    def error(self) -> float:
        """The larger miss, as a fraction."""
        return max(abs(now - was) / was if was else 0.0 for was, now in (self.step_us, self.span_us))


@dataclass(frozen=True, slots=True)
class Pair:
    """A trace, what is changed in it, and what was measured once it was gone."""

    name: str
    trace: Path | Callable[[], Kineto]
    remove: Sequence[str]
    after_us: float | Path
    """Or the trace of the steps after."""
    scale: Sequence[str] = ()
    is_span: bool = False
    """Whether the GPU span is compared, not the step."""
    model: str = "glm-5"
    tp: int = 8
    most_error: float = 0.10
    note: str = ""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A pair, predicted; µs."""

    pair: Pair
    before_us: float
    predicted_us: float
    after_us: float

    @property
    def error(self) -> float:
        """The miss, as a fraction of what was measured."""
        return self.predicted_us / self.after_us - 1


def traces() -> list[Path]:
    """Return all recorded traces at hand."""
    return [*sorted(SHARED.rglob("*.json.gz")), *sorted(LAB.rglob("*.json.gz"))]


def name_of(trace: Path) -> str:
    """Return how the page calls a trace."""
    return trace.relative_to(SHARED if trace.is_relative_to(SHARED) else LAB).as_posix()


def recorded(linked: Linked, steps: Steps, indices: Sequence[int]) -> tuple[float, float]:
    """Return the median step and GPU span in µs, read off the kernels one by one, without the replay."""
    rows = zip(
        steps.step_of_kernel.tolist(),
        *(linked.kernels[name].to_list() for name in ("start_ns", "duration_ns")),
        strict=True,
    )
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step, start, duration in rows:
        if step >= 0:
            first[step] = min(first.get(step, start), start)
            last[step] = max(last.get(step, 0), start + duration)
    order = sorted(first)
    following = dict(pairwise(order))
    spans = [last[step] - first[step] for step in indices]
    durations = [max(first[following[step]] - first[step], 0) for step in indices if step in following] or spans
    return float(np.median(durations)) / 1e3, float(np.median(spans)) / 1e3


@cache
def fidelity(trace: Path) -> tuple[Fidelity, ...]:
    """Return each phase of a trace; nothing for what is no trace or holds no steps on a GPU."""
    try:
        linked = link(load(trace))
    except NotATraceError:
        return ()
    steps = find_steps(linked)
    timeline, profiler = Timeline(linked, steps), Profiler.of(linked, steps)
    taken_out = profiler.taken_out() if profiler else None
    found = []
    for phase, indices in steps.steady_phases().items():
        same, (step_us, span_us) = timeline.replay(indices), recorded(linked, steps, indices)
        found.append(
            Fidelity(
                name_of(trace),
                phase,
                len(indices),
                (step_us, same.step_us),
                (span_us, float(np.median(same.gpu_span_us))),
                timeline.replay(indices, taken_out).step_us if taken_out else None,
            )
        )
    return tuple(found)


@cache
def predict(pair: Pair) -> Predicted:
    """Return what the replay predicts for a pair."""
    with tempfile.TemporaryDirectory() as folder:
        trace = pair.trace if isinstance(pair.trace, Path) else pair.trace().save(Path(folder) / "trace.json")
        prediction = what_if(trace, remove=pair.remove, scale=pair.scale, model=pair.model, tp=pair.tp)
    (phase,) = (phase for phase in prediction.phases if phase.changes)
    rung = phase.ladder[-1]
    if isinstance(pair.after_us, Path):
        (after,) = fidelity(pair.after_us)
        after_us = (after.span_us if pair.is_span else after.step_us)[0]
    else:
        after_us = pair.after_us
    if pair.is_span:
        return Predicted(pair, phase.gpu_span_us.median, rung.gpu_span_us, after_us)
    return Predicted(pair, phase.duration_us.median, rung.step_us, after_us)


def _lab(name: str, *remove: str, mode: str = "graph", **more: Any) -> Pair:  # noqa: ANN401 -- fields of a pair
    """Return a slowdown and its healthy twin."""
    told = msgspec.json.decode((LAB / name / "truth.json").read_bytes())
    return Pair(
        f"lab, {name} ({mode})",
        LAB / name / f"{mode}.json.gz",
        remove,
        LAB / told["twin"] / f"{mode}.json.gz",
        model=str(LAB / "config.json"),
        tp=told["tp_slice"],
        **more,
    )


CAST = ("kv-pool-cast",)
WITH_GRAPHS = ("kv-pool-cast", "launch-bound")
ONE, SIXTEEN, CHUNK = "1x1024-pool495552", "16x1024-pool495552", "1x1024+1024-pool495552"
GRAPH_CAST, GRAPH_GATHER, EAGER_CAST, EAGER_GATHER = (
    SHARED / H200 / f"{name}.json.gz" for name in ("graph-cast", "graph-gather", "eager-cast", "eager-gather")
)
FP8_GRAPH, BF16_GRAPH, FP8_EAGER = (
    SHARED / SGLANG / f"flashinfer-{name}.trace.json.gz" for name in ("fp8-graph", "bf16-graph", "fp8-eager-stacks")
)
FP8_STAYS = "with FP8 come 156 small copies a step, and kernels after a cast run slower; both stay"
PAIRS = [
    Pair("h200, graph-cast", GRAPH_CAST, CAST, GRAPH_GATHER, is_span=True),
    Pair("h200, eager-cast", EAGER_CAST, CAST, EAGER_GATHER, note="no gain"),
    Pair("h200, eager-cast, in graphs", EAGER_CAST, WITH_GRAPHS, 10_500, note="after: about, no trace"),
    Pair("sglang, fp8-graph", FP8_GRAPH, CAST, BF16_GRAPH, most_error=0.12, note=FP8_STAYS),
    Pair("sglang, fp8-eager-stacks", FP8_EAGER, CAST, 341_250 * 137.4 / 137.6, note="no gain; after: 137.6 → 137.4 ms"),
    Pair("sglang, fp8-eager-stacks, in graphs", FP8_EAGER, WITH_GRAPHS, 12_000, note="after: about, no trace"),
    *(
        _lab(f"full-pool-cast-{size}", *CAST)
        for size in (ONE, "1x1024-pool131072", "1x1024-pool65536", "1x32768-pool495552", "16x4096-pool495552")
    ),
    Pair(
        "lab, no-graph (eager)",
        LAB / f"no-graph-{ONE}/eager.json.gz",
        ("launch-bound",),
        LAB / f"healthy-{ONE}/graph.json.gz",
    ),
    _lab(f"fills-{ONE}", "fill-in-step"),
    _lab(f"layout-copies-{SIXTEEN}", "layout-copy"),
    _lab(f"slow-sampling-{SIXTEEN}", "slow-sampling"),
    _lab(f"weight-dequant-per-step-{ONE}", "weight-rematerialised"),
    _lab(f"unfused-norms-{ONE}", "unfused-elementwise"),
    _lab(f"host-gap-{ONE}", "host-gap"),
    _lab("padding-3x1024-pool495552", "padding"),
    _lab(f"hidden-sync-{ONE}", "hidden-sync"),
    _lab("hidden-sync-16x4096-pool495552", "hidden-sync"),
    *(
        _lab(f"{name}-{size}", rule, mode="eager")
        for name, rule, size in (
            ("full-pool-cast", *CAST, ONE),
            ("full-pool-cast", *CAST, "1x32768-pool495552"),
            ("full-pool-cast", *CAST, "16x4096-pool495552"),
            ("fills", "fill-in-step", ONE),
            ("layout-copies", "layout-copy", SIXTEEN),
            ("slow-sampling", "slow-sampling", SIXTEEN),
            ("weight-dequant-per-step", "weight-rematerialised", ONE),
            ("unfused-norms", "unfused-elementwise", ONE),
            ("host-gap", "host-gap", ONE),
            ("padding", "padding", "3x1024-pool495552"),
            ("hidden-sync", "hidden-sync", ONE),
            ("hidden-sync", "hidden-sync", "16x4096-pool495552"),
            ("allocator-churn", "jit-or-allocator-in-step", CHUNK),
            ("lm-head-all-tokens", "lm-head-all-tokens", CHUNK),
        )
    ),
    Pair(
        "sglang#35291, built",
        published_cases.pool_cast,
        (),
        17_680,
        scale=(f"{published_cases.CASTS}={425 / published_cases.LAYERS / published_cases.CAST_US:.5f}",),
        note="0.425 ms of small copies instead",
    ),
    Pair("sglang-omni#2182, built", published_cases.launched_one_by_one, ("launch-bound",), 6_430),
    Pair("sglang#32575, built", published_cases.waits_for_copies, ("cudaStreamSynchronize",), 1_643_000),
    Pair(
        "atlas#246, built", published_cases.waits_over_a_busy_queue, ("cudaEventSynchronize",), 250_000, note="no gain"
    ),
]


def lines() -> Iterator[str]:
    """Yield the lines of the page's last part."""
    measured = [row for trace in traces() for row in fidelity(trace)]
    yield from (HEADING, "", *_FIDELITY)
    yield from _table(
        ("trace", "phase", "steps", "step", "replayed", "GPU span", "replayed", "error"),
        (
            (row.trace, row.phase, str(row.steps), *map(units.time, (*row.step_us, *row.span_us)), f"{row.error:.2%}")
            for row in measured
        ),
    )
    yield from ("", *_PREDICTIONS)
    yield from _table(
        ("pair", "changed", "before", "predicted", "measured after", "error", ""),
        (
            (
                row.pair.name,
                " ".join(f"`{name}`" for name in (*row.pair.remove, *row.pair.scale)),
                *map(units.time, (row.before_us, row.predicted_us, row.after_us)),
                f"{row.error:+.1%}",
                row.pair.note,
            )
            for row in map(predict, PAIRS)
        ),
    )
    yield from ("", *_UNPROFILED)
    yield from _table(
        ("trace", "step", "estimated", "measured", "error"),
        (
            (
                row.trace,
                units.time(row.step_us[0]),
                units.time(row.unprofiled_us) if row.unprofiled_us else "not estimated",
                units.time(true),
                f"{row.unprofiled_us / true - 1:+.1%}" if row.unprofiled_us else "",
            )
            for row in measured
            if (true := unprofiled(row.trace)) is not None
        ),
    )


def unprofiled(trace: str) -> float | None:
    """Return the median step that was timed without the profiler, in µs; None where none was."""
    path = LAB / trace
    if not path.is_file():
        return UNPROFILED_US.get(trace)
    case, _, file = trace.partition("/")
    return next((us for name, us in _timed(LAB / case) if name == file), None)


def _timed(case: Path) -> Iterator[tuple[str, float]]:
    """Yield each step trace of a case and the step without the profiler; of several ranks, each rank's."""
    alone, ranks = case / "truth.json", case / "ranks.json"
    told = msgspec.json.decode((alone if alone.is_file() else ranks).read_bytes())
    for mode in told["recordings"].values():
        files, steps = mode["traces"]["steps"], mode.get("steps") or [mode["step"]]
        files = [files] if isinstance(files, str) else files
        yield from zip(files, (float(step["median_us"]) for step in steps), strict=True)


def _table(header: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


_FIDELITY = """\
What the replay says about all recorded traces at hand. `python scripts/accuracy.py` wrote this page.

## Without a change

Median steps as recorded, added up kernel by kernel, and as the replay of the unchanged timeline has them. The replay
takes from the trace how long each gap was and what work waited for, so that a miss here is a fault in it, and no miss
no proof of what it predicts: for that, tests/pipeline/whatif/test_simulated.py runs random programs with some work and
without. Where it misses a trace by more than 2%, that trace's what-ifs are withheld.

""".splitlines()
_PREDICTIONS = """\
## With a cause removed

Median steps, for graph-cast GPU spans, on the profiler's clock. *Built* traces are made from the reported causes by
`tests/published_cases.py`. What was measured after comes from another recording: the laboratory's graph ran at 2.49 and
at 2.72 ms in the course of one process, for no known reason.

""".splitlines()
_UNPROFILED = f"""\
## Without the profiler

The estimate divides every kernel's time by {GPU_SLOWDOWN} and lets the launch of a graph cost the host nothing. It is
made on an H200 only, and where nearly all GPU time comes from graphs. The factor was chosen on these traces, so that
the errors are its spread; in a run of its own (`benchmarks/results/profiler-overhead-h200.md`) recording made a graph's
step 3.8% longer.

Of eager steps no estimate is given. In that run, on one host, an op cost about 1.3 µs, its shapes 1.1, a kernel with
its launch 1.8, a frame 0.9. Taken from the eager steps below, ops, shapes and launches at that cost leave from 28% less
to 127% more than was measured (of the laboratory's own, from 18% less to 35% more): what recording costs differs from
one host to the next, and no trace tells it.

""".splitlines()


def main() -> None:
    """Write the page."""
    from stepscope.lab.prove import prove  # noqa: PLC0415 -- imports torch
    from stepscope.pipeline.detect.registry import all_rules  # noqa: PLC0415 -- with it

    proof = prove(LAB, {rule.id for rule in all_rules()})
    rows = msgspec.json.format(msgspec.json.encode(list(proof.rows())), indent=1)
    (REPOSITORY / "benchmarks/results/prove.json").write_bytes(rows + b"\n")
    page = (*proof.markdown(), "", *precision.lines(), "", *lines())
    PAGE.write_text("".join(f"{line}\n" for line in page), encoding="utf-8")


if __name__ == "__main__":
    main()
