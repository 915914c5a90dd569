"""The laboratory's two ranks over NCCL, read as plain JSON: who is late, by how much, and what the exchange takes."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import stepscope

if TYPE_CHECKING:
    from stepscope.document import Diagnosis

TRACES = Path(__file__).parent / "traces"
HEALTHY, LATE = "ranks-healthy-1x1024-pool495552", "ranks-late1-1x1024-pool495552"
STEPS, REDUCES = 10, 8
MODES = ("graph", "eager")
BOTH = [(case, mode) for case in (HEALTHY, LATE) for mode in MODES]


class Call(NamedTuple):
    """A collective's kernel, in µs since the Unix epoch less a constant that both ranks share."""

    name: str
    start: float
    end: float
    args: dict[str, Any]


@cache
def truth(case: str) -> dict[str, Any]:
    return dict(json.loads((TRACES / case / "ranks.json").read_bytes()))


def path(case: str, mode: str, rank: int) -> Path:
    return TRACES / case / str(truth(case)["recordings"][mode]["traces"]["steps"][rank])


@cache
def trace(case: str, mode: str, rank: int) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(path(case, mode, rank).read_bytes())))


@cache
def kernels(case: str, mode: str, rank: int) -> list[dict[str, Any]]:
    events = trace(case, mode, rank)["traceEvents"]
    return sorted((event for event in events if event.get("cat") == "kernel"), key=lambda event: event["ts"])


@cache
def calls(case: str, mode: str, rank: int) -> list[Call]:
    """Return the rank's collectives in their order, without the barrier before the first step."""
    assert trace(case, mode, 0)["baseTimeNanoseconds"] == trace(case, mode, 1)["baseTimeNanoseconds"]
    barrier, *found = (event for event in kernels(case, mode, rank) if event["name"].startswith("ncclDevKernel"))
    assert "_f32_" in barrier["name"]
    return [Call(event["name"], event["ts"], event["ts"] + event["dur"], event["args"]) for event in found]


def later(case: str, mode: str) -> list[float]:
    """Return by how much rank 1 is later than rank 0 at each all-reduce, without the first step's."""
    return [b.start - a.start for a, b in zip(calls(case, mode, 0), calls(case, mode, 1), strict=True)][REDUCES:]


def transfers(case: str, mode: str) -> list[float]:
    """Return what each exchange takes once both ranks are there."""
    pairs = zip(calls(case, mode, 0), calls(case, mode, 1), strict=True)
    return [min(a.end, b.end) - max(a.start, b.start) for a, b in pairs]


@pytest.mark.parametrize(("case", "mode"), BOTH)
def test_each_rank_has_the_same_collectives(case: str, mode: str) -> None:
    first, second = (calls(case, mode, rank) for rank in range(2))
    assert len(first) == len(second) == STEPS * REDUCES
    assert truth(case)["all_reduces_per_step"] == REDUCES
    assert {call.name.partition("(")[0] for call in first + second} == {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL"}
    if mode == "eager":  # replayed ones tell nothing of themselves
        assert {(call.args["In msg nelems"], call.args["Group size"], call.args["dtype"]) for call in first} == {
            (truth(case)["all_reduce_bytes"] / 2, 2, "BFloat16")
        }


@pytest.mark.parametrize(("case", "mode"), BOTH)
def test_both_ranks_load(case: str, mode: str) -> None:
    told = truth(case)
    found = stepscope.diagnose(
        [path(case, mode, rank) for rank in range(2)],
        model=str(TRACES / case / "config.json"),
        tp=told["tp_slice"],
        context=max(told["contexts"]),
    )
    assert [each.rank for each in found.traces] == [0, 1]
    assert all(each.complete for each in found.traces)
    assert [(steps.phase, steps.count) for steps in found.steps] == [("decode", STEPS)] * 2
    rows = [row for row in found.breakdown if row.kernel_class == "collective"]
    assert [row.calls_per_step for row in rows] == [REDUCES] * 2
    assert [trace(case, mode, rank)["distributedInfo"]["rank"] for rank in range(2)] == [0, 1]


@cache
def diagnosis(case: str, mode: str) -> Diagnosis:
    told = truth(case)
    folder = path(case, mode, 0).parent
    return stepscope.diagnose(
        [folder], model=str(TRACES / case / "config.json"), tp=told["tp_slice"], context=max(told["contexts"])
    )


def test_nothing_is_found_in_the_healthy_graph() -> None:
    found = diagnosis(HEALTHY, "graph")
    assert found.findings == []
    (row,) = (row for row in found.ruled_out if row.hypothesis == "rank skew")
    assert row.time_us_per_step is not None
    assert row.time_us_per_step < 0.01 * truth(HEALTHY)["recordings"]["graph"]["steps"][0]["median_us"]


def test_the_late_rank_is_found_in_the_graph() -> None:
    (found,) = diagnosis(LATE, "graph").findings
    assert (found.rule, found.trace, found.evidence.late_ranks) == ("rank-skew", None, [truth(LATE)["late_rank"]])
    early, late = found.evidence.ranks
    assert (early.arrival_us, early.rank) == (0, 0)
    assert late.arrival_us == pytest.approx(median(later(LATE, "graph")), rel=0.01)
    assert late.arrival_us == pytest.approx(truth(LATE)["delay_us"], rel=0.1)
    assert early.kernel_us == pytest.approx(median(call.end - call.start for call in calls(LATE, "graph", 0)), rel=0.01)
    assert found.evidence.transfer_us == pytest.approx(median(transfers(LATE, "graph")), rel=0.05)
    assert found.evidence.calls_per_step == REDUCES
    assert found.time_us_per_step == pytest.approx(REDUCES * truth(LATE)["delay_us"], rel=0.02)


def test_without_skew_the_late_graph_is_foretold_to_be_the_healthy_one() -> None:
    (found,) = diagnosis(LATE, "graph").findings
    assert found.what_if is not None
    healthy = [steps.duration_us.median for steps in diagnosis(HEALTHY, "graph").steps]
    today = [steps.duration_us.median for steps in diagnosis(LATE, "graph").steps]
    assert found.what_if.step_us.low == pytest.approx(healthy[0], rel=0.02)
    # of two ranks the median is half the way to the late one
    assert found.what_if.step_us.expected == pytest.approx((healthy[0] + today[0]) / 2, rel=0.02)


def test_eager_ranks_wait_for_the_slower_host_and_that_is_said() -> None:
    for case, late_rank in ((HEALTHY, 0), (LATE, 1)):
        (found,) = (each for each in diagnosis(case, "eager").findings if each.rule == "rank-skew")
        assert found.evidence.late_ranks == [late_rank]
        assert found.confidence == "medium"
        assert any("one by one" in note for note in found.notes)


def test_a_rank_alone_is_not_called_late() -> None:
    for case, asked in ((HEALTHY, 0), (LATE, 1)):
        told = truth(case)
        found = stepscope.diagnose(
            [path(case, "graph", 0)], model=str(TRACES / case / "config.json"), tp=told["tp_slice"]
        )
        assert "rank-skew" not in {each.rule for each in found.findings}
        assert len([row for row in found.could_not_check if row.rule == "rank-skew"]) == asked
        # its kernels last 200 µs whatever it waits for: what one rank says of that is of low confidence
        assert {(each.rule, str(each.confidence)) for each in found.findings} <= {("slow-collective", "low")}


@pytest.mark.parametrize(("case", "mode"), BOTH)
def test_matching_collectives_end_together(case: str, mode: str) -> None:
    """One host has one clock, so that ends agree as they are."""
    ends = [a.end - b.end for a, b in zip(calls(case, mode, 0), calls(case, mode, 1), strict=True)]
    assert max(map(abs, ends)) < 1


def test_nobody_is_late_in_the_healthy_graph() -> None:
    assert abs(median(later(HEALTHY, "graph"))) < 1
    assert max(map(abs, later(HEALTHY, "graph"))) < 20


def test_rank_1_is_late_by_the_delay_in_the_graph() -> None:
    found = later(LATE, "graph")
    assert truth(LATE)["late_rank"] == 1
    assert median(found) == pytest.approx(truth(LATE)["delay_us"], rel=0.01)
    assert min(found) > 190
    assert max(found) < 215


@pytest.mark.parametrize("mode", MODES)
def test_only_the_late_rank_waits_for_itself(mode: str) -> None:
    spins = [[each["dur"] for each in kernels(LATE, mode, rank) if "spin_kernel" in each["name"]] for rank in range(2)]
    assert [len(each) for each in spins] == [0, STEPS * REDUCES]
    assert sum(spins[1]) / STEPS == pytest.approx(REDUCES * truth(LATE)["delay_us"], rel=0.01)
    assert not any("spin_kernel" in each["name"] for rank in range(2) for each in kernels(HEALTHY, mode, rank))


def test_the_early_rank_has_the_long_kernels() -> None:
    early, late = ([call.end - call.start for call in calls(LATE, "graph", rank)][REDUCES:] for rank in range(2))
    assert min(early) > 200
    assert max(late) < 8


@pytest.mark.parametrize(("case", "mode"), BOTH)
def test_the_exchange_takes_the_same_whoever_is_late(case: str, mode: str) -> None:
    assert median(transfers(case, mode)) == pytest.approx(7.2, abs=0.3)
    assert median(transfers(case, mode)) < truth(case)["all_reduce_us"]  # which has the gap to the next in it


def test_the_delay_is_all_that_the_graphs_steps_differ_by() -> None:
    """Without the profiler, and so what a prediction of the step without skew must come to."""
    told = truth(LATE)["recordings"]["graph"]
    for slow, healthy, twin in zip(
        told["steps"], told["steps_without"], truth(HEALTHY)["recordings"]["graph"]["steps"], strict=True
    ):
        assert healthy == twin
        assert slow["median_us"] - healthy["median_us"] == pytest.approx(REDUCES * 200, rel=0.01)


@pytest.mark.parametrize(("case", "step_us"), [(HEALTHY, 1181), (LATE, 2779)])
def test_the_profiler_lengthens_the_graphs_steps_little(case: str, step_us: float) -> None:
    for rank in range(2):
        ends = [call.end for call in calls(case, "graph", rank)][REDUCES - 1 :: REDUCES]
        traced = (ends[-1] - ends[0]) / (STEPS - 1)
        recorded = truth(case)["recordings"]["graph"]["steps"][rank]["median_us"]
        assert recorded == pytest.approx(step_us, abs=1)
        assert 1 < traced / recorded < 1.02


def test_eager_ranks_wait_for_the_slower_host_too() -> None:
    """It is rank 0 where nobody is delayed; the delayed rank is late by more than its delay."""
    assert -300 < median(later(HEALTHY, "eager")) < -150
    assert median(later(LATE, "eager")) > 3 * truth(LATE)["delay_us"]


def test_the_repository_carries_little() -> None:
    sizes = [file.stat().st_size for case in (HEALTHY, LATE) for file in (TRACES / case).rglob("*.gz")]
    assert len(sizes) == 2 * 2 * 3  # cases, ranks; graph, its capture, eager
    assert max(sizes) < 400_000
    assert sum(sizes) < 3_000_000
