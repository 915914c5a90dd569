"""The rules about the host, on built steps that are worked out by hand, and on recordings of the laboratory."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.answers import finding, rules
from tests.examples import hidden_sync
from tests.host_programs import PREFILL, TO_GPU, TO_HOST, TO_PINNED, Program, steps
from tests.kernel_names import GEMM
from tests.published_cases import waits_for_copies, waits_over_a_busy_queue
from tests.stages import diagnosed

from stepscope import diagnose
from stepscope.document import Confidence, Severity

if TYPE_CHECKING:
    from tests.kineto import Kineto

    from stepscope.document import Diagnosis

LAB = Path(__file__).parents[2] / "traces"
OURS = ("hidden-sync", "host-gap", "jit-or-allocator-in-step", "prefill-blocks-decode")


@cache
def recorded(case: str, mode: str) -> tuple[Diagnosis, Any]:
    told = json.loads((LAB / case / "truth.json").read_bytes())
    trace = LAB / case / f"{mode}.json.gz"
    return diagnose([trace], model=str(LAB / "config.json"), tp=told["tp_slice"]), told


def healthy_us(case: str, mode: str) -> float:
    _, told = recorded(case, mode)
    diagnosis, _ = recorded(told["twin"], mode)
    (row,) = diagnosis.steps
    return row.duration_us.median


# hidden-sync


def test_a_wait_costs_the_gap_after_it_and_not_itself() -> None:
    """sglang#32575: 12 waits a batch of 1,678 ms, 33.1 ms idle after them; without them it takes about 1,643."""
    found = finding(diagnosed(waits_for_copies()), "hidden-sync")
    assert found.time_us_per_step == pytest.approx(33_100)
    assert found.evidence.calls_per_step == 12
    assert found.evidence.host_call == "cudaStreamSynchronize"
    assert found.evidence.wait_us_per_step is not None
    assert found.evidence.wait_us_per_step > 1_600_000
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(1_643_000, rel=0.002)


def test_waits_over_a_busy_queue_are_nothing() -> None:
    """atlas#246 and colibri#431: waits of 43% of the step, while the GPU has work."""
    assert "hidden-sync" not in rules(diagnosed(waits_over_a_busy_queue()))


def test_a_length_read_before_each_step_is_gone_with_the_reduction_that_made_it() -> None:
    found = finding(diagnosed(hidden_sync.longest_length_read_before_every_step()), "hidden-sync")
    # 20 GEMMs of 100 µs, a reduction, a copy; then 8 to return, 1 to end the op, 150 of Python, 2 until the next step,
    # 1 into it, and 6 until the kernel
    assert found.time_us_per_step == pytest.approx(8 + 1 + 150 + 2 + 1 + 6)
    assert found.evidence.op == "aten::item"
    assert found.confidence is Confidence.MEDIUM
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(2000, abs=1)  # the GEMMs alone


def waits_in_prefill(gap_us: float) -> Kineto:
    def one(host: Program) -> None:
        for _ in range(4):
            host.work(GEMM, 500, times=5)
            host.copy(TO_GPU, "aten::to", size=4096)
            host.think(gap_us)

    return steps(one, annotation=PREFILL)


def test_idle_time_of_a_hundredth_of_the_step_is_reported() -> None:
    # four gaps a step of 2.5 ms of work each; 8 µs to return, and 7 and 2 between calls, are idle too
    assert "hidden-sync" in rules(diagnosed(waits_in_prefill(20)))
    assert "hidden-sync" not in rules(diagnosed(waits_in_prefill(2)))


def test_of_several_reads_the_last_is_the_tokens() -> None:
    def one(host: Program) -> None:
        for _ in range(3):
            host.work(GEMM, 500, times=2)
            host.copy(TO_HOST, "aten::to")
            host.think(50)

    found = finding(diagnosed(steps(one)), "hidden-sync")
    assert found.evidence.calls_per_step == 2
    assert any("One read a step" in note for note in found.notes)


def test_what_an_upload_waits_for_is_certain_if_its_op_is_known() -> None:
    found = finding(diagnosed(waits_in_prefill(50)), "hidden-sync")
    assert found.confidence is Confidence.HIGH
    assert [fix.kind for fix in found.fix] == ["code"]
    assert "pinned" in found.fix[0].what


@pytest.mark.parametrize(
    ("case", "severity"),
    [("hidden-sync-1x1024-pool495552", Severity.MAJOR), ("hidden-sync-16x4096-pool495552", Severity.MINOR)],
)
def test_the_laboratorys_read_of_the_longest_request(case: str, severity: Severity) -> None:
    diagnosis, _ = recorded(case, "graph")
    assert rules(diagnosis) == ["hidden-sync"]
    found = diagnosis.findings[0]
    assert found.severity is severity
    assert found.evidence.calls_per_step == 1
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(healthy_us(case, "graph"), rel=0.10)


@pytest.mark.parametrize("case", ["hidden-sync-1x1024-pool495552", "hidden-sync-16x4096-pool495552"])
def test_the_laboratorys_read_in_every_layer_of_eager_steps(case: str) -> None:
    diagnosis, told = recorded(case, "eager")
    assert rules(diagnosis) == ["launch-bound", "hidden-sync"]
    evidence = finding(diagnosis, "hidden-sync").evidence
    assert evidence.op == "aten::item"
    assert evidence.calls_per_step == told["layers"] + 1  # and one before the next step


# host-gap


def prepared(gap_us: float) -> Kineto:
    def one(host: Program) -> None:
        host.work(GEMM, 100, times=20)
        host.copy(TO_PINNED, "aten::to")
        host.think(gap_us)

    return steps(one)


def test_a_tenth_of_the_step_between_steps_is_reported() -> None:
    # 2,002 µs of work; 8 and 1 to return, what the host thinks, 2 and 1 until it launches; 6 more until the GPU begins
    assert rules(diagnosed(prepared(220))) == ["host-gap"]
    assert rules(diagnosed(prepared(200))) == []
    found = finding(diagnosed(prepared(300)), "host-gap")
    assert found.time_us_per_step == pytest.approx(8 + 1 + 300 + 2 + 1)


def test_what_the_host_does_between_steps_is_gone() -> None:
    found = finding(diagnosed(prepared(1000)), "host-gap")
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(2003, abs=2)  # the GEMMs and the copy, back to back


def test_the_laboratorys_tables_between_steps() -> None:
    case = "host-gap-1x1024-pool495552"
    diagnosis, _ = recorded(case, "graph")
    assert rules(diagnosis) == ["host-gap"]
    found = diagnosis.findings[0]
    assert found.severity is Severity.CRITICAL
    assert found.evidence.bytes_per_call == 16 * 131_072 // 64 * 8  # requests × pages of 64 tokens, as int64
    assert found.evidence.kernel == "Memcpy HtoD (Pageable -> Device)"
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(healthy_us(case, "graph"), rel=0.10)


def test_the_laboratorys_tables_between_eager_steps() -> None:
    case = "host-gap-1x1024-pool495552"
    diagnosis, _ = recorded(case, "eager")
    assert rules(diagnosis) == ["launch-bound", "host-gap"]
    found = finding(diagnosis, "host-gap")
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(healthy_us(case, "eager"), rel=0.10)


# all of them


RECORDED = [
    (case.parent.name, mode)
    for case in sorted(LAB.glob("*/truth.json"))
    for mode in ("graph", "eager", "stacks")
    if (case.parent / f"{mode}.json.gz").exists()
]


@pytest.mark.parametrize(("case", "mode"), RECORDED)
def test_they_are_silent_on_other_slowdowns_and_on_healthy_twins(case: str, mode: str) -> None:
    diagnosis, told = recorded(case, mode)
    assert {rule for rule in rules(diagnosis) if rule in OURS} <= {told["rule"]}
