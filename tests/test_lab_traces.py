"""What the rules say of the laboratory's recordings, number by number; where each speaks is in tests/catalogue."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import stepscope

TRACES = Path(__file__).parent / "traces"
CASES = sorted(path.parent.name for path in TRACES.glob("*/truth.json"))
LONELY = "1x1024-pool495552"


@cache
def truth(case: str) -> dict[str, Any]:
    return dict(json.loads((TRACES / case / "truth.json").read_bytes()))


@cache
def diagnosis(case: str, mode: str, kind: str, *, joined: bool = False) -> Any:
    told = truth(case)
    traces = told["recordings"][mode]["traces"]
    return stepscope.diagnose(
        [TRACES / case / traces[kind]],
        model=str(TRACES / "config.json"),
        tp=told["tp_slice"],
        context=max(told["contexts"]),
        capture_trace=TRACES / case / traces["capture"] if joined else None,
    )


def finding(case: str, mode: str, rule: str, *, joined: bool = False) -> Any:
    (found,) = [each for each in diagnosis(case, mode, "steps", joined=joined).findings if each.rule == rule]
    return found


WAYS = [
    (case, mode, kind, joined)
    for case in CASES
    for mode, recording in truth(case)["recordings"].items()
    for kind in recording["traces"]
    if kind != "capture"
    for joined in ({False, True} if "capture" in recording["traces"] else {False})
]


def test_every_slowdown_and_its_twin_are_there() -> None:
    assert len({truth(case)["slowdown"] for case in CASES} - {None}) == 12
    for case in CASES:
        if truth(case)["slowdown"]:
            assert truth(case)["twin"] in CASES
            assert all(recording["step_without"] for recording in truth(case)["recordings"].values())


@pytest.mark.parametrize("case", CASES)
def test_the_truth_counts_what_the_traces_hold(case: str) -> None:
    for recording in truth(case)["recordings"].values():
        text = gzip.decompress((TRACES / case / recording["traces"]["steps"]).read_bytes())
        events = json.loads(text)["traceEvents"]
        steps = sum(event.get("cat") == "user_annotation" and event["name"].startswith("step[") for event in events)
        work = sum(event.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"} for event in events)
        assert work == pytest.approx(recording["kernels_per_step"] * steps, abs=4)  # what lies between two steps


@pytest.mark.parametrize("slots", [495_552, 131_072, 65_536])
def test_only_the_pool_changes_what_the_cast_costs(slots: int) -> None:
    case = f"full-pool-cast-1x1024-pool{slots}"
    found = finding(case, "graph", "kv-pool-cast")
    assert found.evidence.calls_per_step == 16
    assert found.evidence.tensor.startswith(f"KV pool, {slots:,} slots")
    assert found.evidence.bytes_per_call == slots * 576 * 3


@pytest.mark.parametrize("slots", [495_552, 131_072, 65_536])
def test_the_step_without_the_cast_is_predicted_as_it_was_traced(slots: int) -> None:
    # the 1,024 live rows stay cast at the pool's rate, which 1% of the step is too much for so few
    predicted = finding(f"full-pool-cast-1x1024-pool{slots}", "graph", "kv-pool-cast").what_if.step_us.expected
    traced = diagnosis(f"healthy-1x1024-pool{slots}", "graph", "steps").steps[0].duration_us.median
    assert predicted == pytest.approx(traced, rel=0.02)


def test_a_capture_tells_the_casts_of_the_graph() -> None:
    case = f"full-pool-cast-{LONELY}"
    assert finding(case, "graph", "kv-pool-cast", joined=True).evidence.input_shape == [495_552, 1, 576]
    assert (
        diagnosis(case, "graph", "steps", joined=True).traces[0].attribution.joined > 0.98
    )  # Triton launches outside any op


def test_the_cast_lies_in_the_readers_line() -> None:
    found = diagnosis(f"full-pool-cast-{LONELY}", "eager", "stacks").findings
    (cast,) = [each for each in found if each.rule == "kv-pool-cast"]
    innermost = cast.evidence.frames[-1]
    assert innermost.file == "stepscope/lab/attention.py"
    assert innermost.function == "full_pool_cast"


def test_the_repository_carries_little() -> None:
    sizes = {path: path.stat().st_size for case in CASES for path in (TRACES / case).glob("*.gz")}
    for path, size in sizes.items():
        assert size < (300_000 if path.name in {"graph.json.gz", "capture.json.gz"} else 800_000), path
    assert sum(sizes.values()) < 18_000_000
