"""Traces of several ranks diagnosed together: who is late, what it costs, and what cannot be told."""

from __future__ import annotations

import gzip
import io
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from tests.answers import finding, rules
from tests.decode_ranks import ALL_REDUCE, SEND_RECV, STEP, in_lockstep, step_us
from tests.published_collectives import token_of_slow_all_reduces
from tests.stages import diagnosed

from stepscope import diagnose
from stepscope.document import Confidence, Severity
from stepscope.errors import NotATraceError, UsageError
from stepscope.hardware import best_known, find_gpu
from stepscope.pipeline.load import load
from stepscope.report import Format, draw

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.kineto import Kineto

    from stepscope.document import Diagnosis
    from stepscope.trace import Trace

CALLS = 20


def work(*us: float) -> list[list[float]]:
    """Return what each rank computes before every collective."""
    return [[each] * CALLS for each in us]


def saved(folder: Path, traces: Sequence[Kineto], name: str = "rank{}.json") -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    return [trace.save(folder / name.format(rank)) for rank, trace in enumerate(traces)]


def unchecked(diagnosis: Diagnosis, rule: str) -> list[str]:
    return [row.missing for row in diagnosis.could_not_check if row.rule == rule]


def test_one_late_rank_of_two() -> None:
    found = finding(diagnosed(in_lockstep([work(100, 160)] * 5, offsets=(0, 7000))), "rank-skew")
    assert found.trace is None
    assert found.severity is Severity.MAJOR
    assert found.confidence is Confidence.HIGH
    evidence = found.evidence
    assert [each.rank for each in evidence.ranks] == [0, 1]
    assert [each.arrival_us for each in evidence.ranks] == pytest.approx([0, 60], abs=0.01)
    assert [each.kernel_us for each in evidence.ranks] == pytest.approx([67, 7], abs=0.01)
    assert evidence.late_ranks == [1]
    assert evidence.transfer_us == pytest.approx(7, abs=0.01)
    assert evidence.calls_per_step == CALLS
    assert evidence.replayed_trace == 0
    assert found.time_us_per_step == pytest.approx(60 * CALLS, abs=0.1)
    what_if = found.what_if
    assert what_if is not None
    # the mean of both arrivals is 30 µs after the first, so that half of the waiting is gained, and all at best
    assert what_if.step_us.expected == pytest.approx(step_us(work(100, 130)), abs=1)
    assert what_if.step_us.low == pytest.approx(step_us(work(100, 100)), abs=1)
    assert what_if.gain_fraction == pytest.approx(30 * CALLS / step_us(work(100, 160)), rel=0.001)


def test_late_ranks_of_eight_arrive_after_the_median() -> None:
    us = (100, 100, 110, 100, 150, 100, 190, 100)
    found = finding(diagnosed(in_lockstep([work(*us)] * 5)), "rank-skew")
    assert found.evidence.late_ranks == [2, 4, 6]
    assert [each.arrival_us for each in found.evidence.ranks] == pytest.approx([u - 100 for u in us], abs=0.01)
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(step_us(work(100)), abs=1)


def test_of_four_ranks_the_median_is_the_mean_of_the_middle_two() -> None:
    found = finding(diagnosed(in_lockstep([work(100, 120, 160, 200)] * 5)), "rank-skew")
    assert found.evidence.late_ranks == [2, 3]
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(step_us(work(140)), abs=1)
    assert found.what_if.step_us.low == pytest.approx(step_us(work(100)), abs=1)


def test_a_rank_that_recorded_no_step_of_a_phase_takes_no_part_in_it() -> None:
    traces = in_lockstep([work(100, 160, 100)] * 10)
    for trace in traces:
        decoding = [event for event in trace.events if event["name"] == STEP]
        for event in decoding[5:]:
            event["name"] = "step[EXTEND bs=1 toks=64]"
    prefill = min(event["ts"] for event in traces[2].events if event["name"].startswith("step[EXTEND"))
    traces[2].events = [event for event in traces[2].events if event["ts"] < prefill]  # its recording ended there
    diagnosis = diagnosed(traces)
    skews = {found.phase: found for found in diagnosis.findings if found.rule == "rank-skew"}
    assert [each.rank for each in skews["decode"].evidence.ranks] == [0, 1, 2]
    assert [each.rank for each in skews["prefill"].evidence.ranks] == [0, 1]
    assert [each.arrival_us for each in skews["prefill"].evidence.ranks] == pytest.approx([0, 60], abs=0.01)
    assert skews["prefill"].evidence.late_ranks == [1]


def test_imbalance_that_alternates_names_nobody_late() -> None:
    unequal = [[100.0, 180.0] * (CALLS // 2), [180.0, 100.0] * (CALLS // 2)]
    found = finding(diagnosed(in_lockstep([unequal] * 5)), "rank-skew")
    assert found.evidence.late_ranks == []
    assert "changes from call to call" in found.title
    assert [each.arrival_us for each in found.evidence.ranks] == pytest.approx([40, 40], abs=0.01)
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(step_us(work(140)), abs=1)
    assert found.what_if.step_us.low == pytest.approx(step_us(work(100)), abs=1)


def test_waiting_of_less_than_two_percent_is_ruled_out_with_its_numbers() -> None:
    # 20 calls × 2 µs of 2,201 µs are 1.8%; with 3 µs, of 2,221, they are 2.7%
    below = diagnosed(in_lockstep([work(100, 102)] * 5))
    assert "rank-skew" not in rules(below)
    (row,) = (row for row in below.ruled_out if row.hypothesis == "rank skew")
    assert row.trace is None
    assert row.time_us_per_step == pytest.approx(40, abs=0.1)
    assert "2.0 µs behind the first" in row.reason
    assert "rank-skew" in rules(diagnosed(in_lockstep([work(100, 103)] * 5)))


def test_one_rank_cannot_tell_and_says_so_where_collectives_matter() -> None:
    notable, slight = (in_lockstep([work(100, late)] * 5)[0] for late in (110, 100))
    # 17 of 117 µs are 14%, 7 of 107 are 7%
    for trace, asked in ((notable, 1), (slight, 0)):
        alone = diagnosed(trace)
        assert "rank-skew" not in rules(alone)
        assert len(unchecked(alone, "rank-skew")) == asked


def test_a_damaged_rank_is_named_and_the_rest_used(tmp_path: Path) -> None:
    paths = saved(tmp_path, in_lockstep([work(100, 130, 160, 100)] * 5))
    paths[1].write_bytes(b'{"error": "disk full"}')
    for given in ([tmp_path], paths):
        found = diagnose(given)
        assert [trace.rank for trace in found.traces] == [0, 2, 3]
        assert finding(found, "rank-skew").evidence.late_ranks == [2]
        named = unchecked(found, "rank-skew")
        assert any("rank 1" in text and "left out" in text for text in named)
        assert any("rank 1 of the run's 4" in text for text in named)


def test_a_rank_that_was_cut_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    paths = saved(tmp_path, in_lockstep([work(100, 160)] * 8), "rank{}.json.gz")
    text = gzip.decompress(paths[1].read_bytes())
    paths[1].write_bytes(gzip.compress(text[: len(text) * 6 // 10]))
    found = diagnose(paths)
    assert [trace.complete for trace in found.traces] == [True, False]
    assert finding(found, "rank-skew").evidence.late_ranks == [1]


def test_nothing_but_damage_is_said(tmp_path: Path) -> None:
    paths = [tmp_path / "rank0.json", tmp_path / "rank1.json"]
    for path in paths:
        path.write_text("{}")
    with pytest.raises(NotATraceError, match="none of the 2 files is a trace"):
        diagnose(paths)
    with pytest.raises(UsageError, match="no such file"):
        diagnose([*paths, tmp_path / "rank2.json"])


def test_missing_ranks_are_named() -> None:
    found = diagnosed(in_lockstep([work(100, 160)] * 5, world=8))
    assert finding(found, "rank-skew").evidence.late_ranks == [1]
    assert any("ranks 2–7 of the run's 8" in text for text in unchecked(found, "rank-skew"))


def test_folders_and_phases_of_a_run_are_told_by_their_names(tmp_path: Path) -> None:
    saved(tmp_path / "graph", in_lockstep([work(100, 160)] * 5))
    saved(tmp_path / "eager", in_lockstep([work(100, 100)] * 5))
    saved(tmp_path / "server", in_lockstep([work(130, 100)] * 5), "1790-TP-{}-DECODE.trace.json")
    saved(tmp_path / "server", in_lockstep([work(100, 100)] * 5), "1790-TP-{}-EXTEND.trace.json")
    found = diagnose([tmp_path])
    assert sorted(f.evidence.late_ranks or [] for f in found.findings if f.rule == "rank-skew") == [[0], [1]]
    assert len([row for row in found.ruled_out if row.hypothesis == "rank skew"]) == 2


def test_traces_that_are_no_ranks_are_judged_alone(tmp_path: Path) -> None:
    late = in_lockstep([work(100, 160)] * 5)[0]
    for name in ("a.json", "b.json"):
        late.header["distributedInfo"] = {}
        late.save(tmp_path / name)
    found = diagnose([tmp_path])
    assert rules(found) == []
    assert [row.trace for row in found.could_not_check if row.rule == "rank-skew"] == [0, 1]


def test_ranks_of_different_runs_are_not_compared(tmp_path: Path) -> None:
    for rank, seed in enumerate((13, 29)):
        steps = [[[100.0 + (seed * call + 37 * step) % 90 for call in range(CALLS)]] * 2 for step in range(6)]
        in_lockstep(steps)[rank].save(tmp_path / f"rank{rank}.json")
    found = diagnose([tmp_path])
    assert rules(found) == []
    assert [row for row in found.ruled_out if row.hypothesis == "rank skew"] == []
    (said,) = unchecked(found, "rank-skew")
    assert "ranks 0–1: no collectives end together" in said


def test_a_suspect_that_is_found_guilty_is_not_ruled_out() -> None:
    def suspected(late: float) -> list[int | None]:
        rows = diagnosed(in_lockstep([work(100, late)] * 5)).ruled_out
        return [row.trace for row in rows if row.hypothesis == "collectives"]

    assert suspected(160) == []
    assert suspected(100) == [0, 1]


def test_late_ranks_are_not_called_slow_collectives() -> None:
    found = diagnosed(in_lockstep([[[100.0] * 160, [160.0] * 160]] * 5))
    assert rules(found) == ["rank-skew"]


def test_v100_a_ring_for_8_kb() -> None:
    """sglang-V100#2: 100 × (20.3 − 5.0) µs are 1.53 ms of a token of 10.5."""
    for ranks, trace, confidence in ((1, 0, Confidence.LOW), (4, None, Confidence.HIGH)):
        found = finding(diagnosed(token_of_slow_all_reduces(ranks=ranks), model=None, tp=None), "slow-collective")
        assert found.trace == trace
        assert found.confidence is confidence
        assert any("its trace looks the same" in note for note in found.notes) is (ranks == 1)
        assert found.evidence.best_known_us == pytest.approx(5.0)
        assert found.evidence.us_per_call == pytest.approx(20.3)
        assert found.evidence.bytes_per_call == 8192
        assert found.time_us_per_step == pytest.approx(1530, rel=0.001)
        assert found.what_if is not None
        assert found.what_if.step_us.expected == pytest.approx(10_500 - 1530, rel=0.001)
        assert found.what_if.gain_fraction * 10_500 <= 1530.5


def test_an_unknown_size_is_asked_for_where_collectives_matter() -> None:
    trace = in_lockstep([[[100.0] * CALLS] * 2] * 5, transfer=40)[0]
    asked = unchecked(diagnosed(trace, model=None, tp=None), "slow-collective")
    assert len(asked) == 1
    assert "how many bytes" in asked[0]


def test_a_rank_from_stdin_is_compared_but_not_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = saved(tmp_path, in_lockstep([work(100, 160)] * 5))
    with first.open("rb") as stream:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stream))
        found = finding(diagnose(["-", second]), "rank-skew")
    assert found.evidence.late_ranks == [1]
    assert found.evidence.replayed_trace == 1  # the late rank's: what it does longer is shortened
    assert found.what_if is not None
    assert found.what_if.step_us.low == pytest.approx(step_us(work(100, 100)), abs=1)


def test_one_trace_is_held_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory grows with the largest rank: each trace is gone before the next one is read."""
    paths = saved(tmp_path, in_lockstep([work(*[100] * 7, 160)] * 5))
    held: list[weakref.ref[Any]] = []
    alive_then: list[int] = []

    def watched(*args: Any, **options: Any) -> Trace:
        alive_then.append(sum(ref() is not None for ref in held))
        trace = load(*args, **options)
        held.append(weakref.ref(trace.kernels))
        return trace

    monkeypatch.setattr("stepscope.pipeline.reader.load", watched)
    found = diagnose(paths)
    assert finding(found, "rank-skew").evidence.late_ranks == [7]
    assert alive_then == [0] * 9  # eight ranks, and the one that waits most once more


@pytest.mark.parametrize("name", ["all_to_all", "all_to_allv", "alltoall"])
def test_all_to_alls_are_the_collectives_of_their_group(name: str) -> None:
    """Experts are exchanged in NCCL's SendRecv, as torch tells: who is late is known as of any collective."""
    found = diagnosed(in_lockstep([work(100, 160)] * 5, kernel=SEND_RECV, told=name))
    late = finding(found, "rank-skew")
    assert late.evidence.late_ranks == [1]
    assert [each.arrival_us for each in late.evidence.ranks] == pytest.approx([0, 60], abs=0.01)
    assert late.evidence.transfer_us == pytest.approx(7, abs=0.01)
    assert unchecked(found, "rank-skew") == []


def test_deep_eps_exchange_is_one_whatever_its_name() -> None:
    kernel = "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, void*, int*, long*, int*, int*)"
    found = diagnosed(in_lockstep([work(100, 160)] * 5, kernel=kernel))
    assert finding(found, "rank-skew").evidence.late_ranks == [1]


@pytest.mark.parametrize("told", ["send", "recv", None])
def test_what_one_rank_sends_to_another_cannot_be_compared_and_is_said_so(told: str | None) -> None:
    traces = in_lockstep([work(100, 160)] * 5, kernel=SEND_RECV, told=told)
    for given in (traces, traces[:1]):
        found = diagnosed(given)
        assert "rank-skew" not in rules(found)
        said = unchecked(found, "rank-skew")
        # of the second, 7 of 167 µs are 4%: not worth a question
        assert [row.trace for row in found.could_not_check if row.rule == "rank-skew"] == [0]
        assert "SendRecv" in said[0]


def test_an_all_to_all_beside_sends_is_compared_alone() -> None:
    traces = in_lockstep([work(100, 160)] * 5, kernel=SEND_RECV, told="all_to_all")
    for trace in traces:
        calls = [event for event in trace.events if event["name"] == SEND_RECV]
        for event in calls[::2]:
            event["args"]["Collective name"] = "send"
    found = diagnosed(traces)
    late = finding(found, "rank-skew")
    assert late.evidence.calls_per_step == CALLS / 2
    assert len(unchecked(found, "rank-skew")) == 1


def test_nothing_is_known_to_compare_an_all_to_all_with() -> None:
    (alone, _) = in_lockstep([work(100, 100)] * 5, transfer=40, kernel=SEND_RECV, told="all_to_all")
    for event in alone.events:
        if event["name"] == SEND_RECV:
            event["args"] |= {"In msg nelems": 6144, "Out msg nelems": 6144, "Group size": 2, "dtype": "BFloat16"}
    found = diagnosed(alone, model=None, tp=None)
    assert "slow-collective" not in rules(found)
    (said,) = unchecked(found, "slow-collective")
    assert "nothing was measured to compare them with" in said


def test_the_ladder_of_a_rank_holds_what_all_ranks_show_too() -> None:
    """Two causes: rank 1 comes 60 µs late to each collective, and each transfer takes 40 µs, where 6.2 are known to do.

    GLM-5's 12,288 bytes a token; on two H200 the data file's best known time.
    """
    traces = in_lockstep([[[100.0] * 156, [160.0] * 156]] * 5, transfer=40)
    for trace in traces:
        for event in trace.events:
            if event["name"] == ALL_REDUCE:
                event["args"] |= {"Group size": 2, "Process Group Name": "tp"}
    diagnosis = diagnosed(traces)
    assert rules(diagnosis) == ["slow-collective", "rank-skew"]
    assert [(rung.trace, rung.fixed) for rung in diagnosis.ladder] == [(0, "slow-collective"), (0, "rank-skew")]
    best = best_known(find_gpu("h200", None), "all-reduce", 12_288, 2)
    assert best is not None
    first, second = (rung.step_us for rung in diagnosis.ladder)
    late, level = ([[us] * 156] for us in (160.0, 130.0))
    assert first == pytest.approx(step_us(late, best.us), rel=0.01)
    assert second == pytest.approx(step_us(level, best.us), rel=0.01)
    for report in (Format.TERMINAL, Format.MARKDOWN):
        drawing = io.StringIO()
        draw(diagnosis, report, drawing)
        text = " ".join(drawing.getvalue().replace("\\", "").split())
        assert "One after another (decode in rank0.json): " in text
        assert "without slow-collective" in text
        assert "without rank-skew too" in text
