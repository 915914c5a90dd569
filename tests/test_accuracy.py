"""The replay held against what was measured: without a change, with a cause removed, and without the profiler."""

from __future__ import annotations

import pytest
from scripts import accuracy, precision
from scripts.accuracy import LAB, PAGE, PAIRS, SHARED, Pair

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the real traces are not beside the repository")


def test_the_replay_reproduces_every_recorded_trace() -> None:
    found = [row for trace in accuracy.traces() for row in accuracy.fidelity(trace)]
    assert len({row.trace for row in found}) > 50
    assert {row.trace: row.error for row in found if row.error > 0.02} == {}


@pytest.mark.parametrize("pair", PAIRS, ids=[pair.name for pair in PAIRS])
def test_a_pair_is_predicted_as_it_was_measured(pair: Pair) -> None:
    predicted = accuracy.predict(pair)
    assert predicted.predicted_us == pytest.approx(predicted.after_us, rel=pair.most_error)
    assert predicted.predicted_us <= predicted.before_us


@pytest.mark.parametrize("name", ["h200, eager-cast", "sglang, fp8-eager-stacks", "atlas#246, built"])
def test_no_gain_is_predicted_where_none_was(name: str) -> None:
    (pair,) = (pair for pair in PAIRS if pair.name == name)
    predicted = accuracy.predict(pair)
    assert predicted.predicted_us >= 0.99 * predicted.before_us


def test_steps_of_graphs_are_estimated_as_they_were_timed_without_the_profiler() -> None:
    rows = [row for trace in accuracy.traces() for row in accuracy.fidelity(trace)]
    misses = {
        row.trace: row.unprofiled_us / true - 1
        for row in rows
        if row.unprofiled_us and (true := accuracy.unprofiled(row.trace)) is not None
    }
    graphs = [path for path in LAB.glob("*/graph.json.gz") if (path.parent / "truth.json").is_file()]
    graphs += LAB.glob("ranks-*/graph/*.json.gz")
    assert len(misses) == 4 + len(graphs)  # two servers' and two of the longer laboratory's besides
    assert {trace: miss for trace, miss in misses.items() if abs(miss) > 0.06} == {}
    eager = [row for row in rows if "eager" in row.trace or row.trace.startswith("TraceLens")]
    assert {row.unprofiled_us for row in eager} == {None}


def test_the_page_is_as_the_script_writes_it() -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    parts = page.index(precision.HEADING), page.index(accuracy.HEADING)
    assert page[parts[0] : parts[1]] == [*precision.lines(), ""], "run: python scripts/accuracy.py"
    assert page[parts[1] :] == list(accuracy.lines()), "run: python scripts/accuracy.py"


def test_the_laboratorys_traces_are_among_them() -> None:
    assert {trace.parent.name for trace in accuracy.traces()} >= {path.parent.name for path in LAB.glob("*/truth.json")}
