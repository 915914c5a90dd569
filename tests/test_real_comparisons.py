"""Real traces side by side, held against figures counted anew from the files; the traces lie beside the repository."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import stepscope
from stepscope.document import Verdict
from stepscope.errors import UsageError

TRACES = Path(__file__).parents[2] / "shared" / "traces"
LAB = Path(__file__).parent / "traces"
PAIRS = [
    ("h200-decode/graph-cast.json.gz", "h200-decode/graph-gather.json.gz"),
    ("h200-decode/eager-cast.json.gz", "h200-decode/eager-gather.json.gz"),
    ("sglang-h200/flashinfer-fp8-graph.trace.json.gz", "sglang-h200/flashinfer-bf16-graph.trace.json.gz"),
]
GRAPHS, EAGER, SGLANG = PAIRS

needs_real = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside the repository")


@cache
def compared(before: str, after: str) -> Any:
    return stepscope.compare(TRACES / before, TRACES / after, model="glm-5", tp=8)


class Counted:
    """A trace counted with plain loops: GPU work belongs to the last annotation of a step before its launch."""

    def __init__(self, path: Path) -> None:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        starts = sorted(
            event["ts"]
            for event in events
            if event.get("cat") == "user_annotation" and event["name"].startswith("step[")
        )
        launched = {
            event["args"]["correlation"]: event["ts"]
            for event in events
            if event.get("cat") in {"cuda_runtime", "cuda_driver"}
        }
        work: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for event in events:
            if event.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"} and event["args"]["correlation"] in launched:
                step = bisect_right(starts, launched[event["args"]["correlation"]]) - 1
                if step >= 0:
                    work[step].append(event)
        steps = [work[step] for step in sorted(work)]
        begin = [min(event["ts"] for event in step) for step in steps]
        self.count = len(steps)
        first = 1 if len(steps) > 3 else 0
        self.durations = [after - before for before, after in pairwise(begin)][first:]
        self.spans = [
            max(event["ts"] + event["dur"] for event in step) - start
            for step, start in zip(steps[first:], begin[first:], strict=True)
        ]
        self.kernels: dict[str, list[float]] = {}
        names = {event["name"] for step in steps[first:] for event in step}
        for name in names:
            of = [[event["dur"] for event in step if event["name"] == name] for step in steps[first:]]
            self.kernels[name] = [median(map(len, of)), median(map(sum, of))]


@needs_real
@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_differences_are_those_counted_anew(before: str, after: str) -> None:
    found = compared(before, after)
    left, right = Counted(TRACES / before), Counted(TRACES / after)
    (steps,) = found.steps
    assert (steps.before.count, steps.after.count) == (left.count, right.count)
    assert found.delta_us.expected == pytest.approx(median(right.durations) - median(left.durations), abs=0.01)
    assert steps.gpu_span_delta_us.expected == pytest.approx(median(right.spans) - median(left.spans), abs=0.01)
    rows = {row.kernel: row for row in found.by_kernel if row.renamed_to is None}
    renamed = {row.kernel for row in found.by_kernel if row.renamed_to}
    assert {name for name, row in rows.items() if row.before} == left.kernels.keys() - renamed
    for name, row in rows.items():
        for side, counted in ((row.before, left.kernels.get(name)), (row.after, right.kernels.get(name))):
            if counted is None:
                assert side is None
            else:
                assert [side.calls_per_step, side.time_us_per_step] == pytest.approx(counted, abs=0.01)


@needs_real
@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_the_waterfall_adds_up_to_the_difference(before: str, after: str) -> None:
    found = compared(before, after)
    assert sum(row.delta_us for row in found.waterfall) == pytest.approx(found.delta_us.expected, abs=1e-3)


@needs_real
def test_where_the_66_ms_went() -> None:
    found = compared(*GRAPHS)
    cast = next(row for row in found.waterfall if row.name == "cast")
    assert cast.delta_us == pytest.approx(-66_000, rel=0.01)
    (steps,) = found.steps
    assert steps.gpu_span_delta_us.expected == pytest.approx(10_300 - 76_740, rel=0.001)
    assert steps.verdict is Verdict.FASTER
    assert steps.gpu_span_verdict is Verdict.FASTER
    assert found.by_kernel[0].before.calls_per_step == 78
    assert [row.rule for row in found.findings.gone] == ["kv-pool-cast"]


@needs_real
def test_the_what_if_of_the_graph_stands_beside_the_measured_step() -> None:
    prediction = compared(*GRAPHS).prediction
    assert prediction.rules == ["kv-pool-cast"]
    assert prediction.gpu_span.measured_us == pytest.approx(10_300, rel=0.001)
    assert abs(prediction.gpu_span.unexplained_us) < 0.1 * 10_300
    assert not prediction.gpu_span.is_miss


@needs_real
def test_three_eager_steps_claim_nothing() -> None:
    found = compared(*EAGER)
    assert {steps.verdict for steps in found.steps} == {Verdict.TOO_FEW_STEPS}
    assert found.delta_us.low < 0 < found.delta_us.high
    cast = next(row for row in found.waterfall if row.name == "cast")
    idle = next(row for row in found.waterfall if row.name == "idle")
    assert cast.delta_us == pytest.approx(-66_000, rel=0.01)
    assert idle.delta_us > 60_000  # where the cast was, the GPU now waits


@needs_real
def test_a_server_without_the_cast() -> None:
    found = compared(*SGLANG)
    assert found.delta_us.expected == pytest.approx(11_210 - 80_370, rel=0.002)
    assert found.steps[0].verdict is Verdict.FASTER
    small = [row for row in found.by_kernel if row.after is None and row.before.calls_per_step == 156]
    assert [round(-row.delta_us, -1) for row in small] == [220]  # the copies that come with the FP8 pool


@needs_real
@pytest.mark.parametrize("trace", [path for pair in PAIRS for path in pair])
def test_a_real_trace_against_itself_passes(trace: str) -> None:
    found = compared(trace, trace)
    assert found.delta_us.expected == 0
    assert found.steps[0].slowdown is None
    assert (found.findings.gone, found.findings.new, found.findings.changed, found.prediction) == ([], [], [], None)


@needs_real
@pytest.mark.parametrize("path", sorted((TRACES / "public").rglob("*.json.gz")), ids=lambda path: path.name[:40])
def test_a_public_trace_against_itself_differs_in_nothing_or_is_refused(path: Path) -> None:
    if "execution_trace" in path.parts:
        pytest.skip("no trace")
    if not [steps for steps in stepscope.diagnose([path]).steps if steps.phase != "warm-up"]:
        with pytest.raises(UsageError):
            stepscope.compare(path, path)
        return
    found = stepscope.compare(path, path)
    for rows in (found.steps, found.by_class, found.by_kernel, found.waterfall):
        assert {getattr(row.delta_us, "expected", row.delta_us) for row in rows} == {0}


def truth(case: str) -> Any:
    return json.loads((LAB / case / "truth.json").read_bytes())


TWINS = [
    (case, truth(case)["twin"], mode)
    for case in sorted(path.parent.name for path in LAB.glob("*/truth.json"))
    if truth(case)["slowdown"]
    for mode in truth(case)["recordings"]
    if mode in truth(truth(case)["twin"])["recordings"]
]


@pytest.mark.parametrize(("case", "twin", "mode"), TWINS, ids=[f"{twin[0]}-{twin[2]}" for twin in TWINS])
def test_a_slowdown_of_the_laboratory_and_its_healthy_twin(case: str, twin: str, mode: str) -> None:
    left, right = LAB / case / f"{mode}.json.gz", LAB / twin / f"{mode}.json.gz"
    found = stepscope.compare(left, right, model=str(LAB / "config.json"), tp=truth(case)["tp_slice"])
    old, new = Counted(left), Counted(right)
    before, after = (median(side.durations or side.spans) for side in (old, new))
    (steps,) = found.steps
    assert steps.delta_us.expected == pytest.approx(after - before, abs=0.01)
    assert steps.verdict is Verdict.TOO_FEW_STEPS
    assert sum(row.delta_us for row in found.waterfall) == pytest.approx(steps.delta_us.expected, abs=1e-3)
