"""The rules about the host, on built steps that are worked out by hand, and on recordings of the laboratory."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.answers import finding, rules
from tests.examples import hidden_sync, jit_or_allocator_in_step, prefill_blocks_decode
from tests.host_programs import CHOSEN, LONGEST, PREFILL, TO_GPU, TO_HOST, TO_PINNED, Program, steps
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
    assert any("One wait a step" in note for note in found.notes)


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


# a wait, and what the host prepares after it


def read_and_prepared(us: float) -> Kineto:
    """2,000 µs of work, and a reduction whose result the host reads before it prepares the next step.

    The GPU is idle for 8 and 1 to return, what is prepared, 2 and 1 until the launch, and 6 until the GPU begins.
    """

    def one(host: Program) -> None:
        host.work(GEMM, 100, times=20)
        host.work(LONGEST, 2, op="aten::max")
        host.copy(TO_PINNED, "aten::item")
        host.think(us)

    return steps(one)


def test_the_gap_after_a_wait_is_the_waits_where_it_would_be_gone_without_it() -> None:
    diagnosis = diagnosed(read_and_prepared(1000))
    assert rules(diagnosis) == ["hidden-sync"]
    found = finding(diagnosis, "hidden-sync")
    assert found.time_us_per_step == pytest.approx(1000 + 18)
    # the preparation alone gains its 1,000 µs, and 18 less what it takes until the GPU begins
    assert (
        found.notes[-1] == "The same idle time is what host-gap finds; without that alone the step is 1.02 ms shorter."
    )
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(2000, abs=2)
    assert [rung.fixed for rung in diagnosis.ladder] == ["hidden-sync"]


def test_the_gap_is_the_preparations_where_it_is_longer_than_the_wait() -> None:
    diagnosis = diagnosed(read_and_prepared(3000))
    assert rules(diagnosis) == ["host-gap"]
    found = finding(diagnosis, "host-gap")
    assert found.time_us_per_step == pytest.approx(3000 + 12)
    # the read's op lasts from 210 µs after the step's begin, when all is launched, until 2,019; the reduction's takes 6
    assert (
        found.notes[-1]
        == "The same idle time is what hidden-sync finds; without that alone the step is 1.82 ms shorter."
    )
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(2005, abs=2)


def test_where_each_causes_a_part_their_times_are_apart() -> None:
    """The token is read first, so that the read of the length after it waits for next to nothing."""

    def one(host: Program) -> None:
        host.work(GEMM, 100, times=20)
        host.work(CHOSEN, 5, op="aten::argmax")
        host.copy(TO_HOST, "aten::to")
        host.work(LONGEST, 2, op="aten::max")
        host.copy(TO_PINNED, "aten::item")
        host.think(400)

    diagnosis = diagnosed(steps(one))
    (step,) = diagnosis.steps
    gap, read = (finding(diagnosis, rule) for rule in ("host-gap", "hidden-sync"))
    # what the host does not do without the read: the reduction's op of 6 µs, and the read's of 8, 11 of waiting and 1
    assert read.time_us_per_step == pytest.approx(26, abs=1)
    # 10 from the reduction to the copy, then 8 and 1 to return, 400 of preparation, 2 and 1 until the launch
    assert gap.time_us_per_step + read.time_us_per_step == pytest.approx(422, abs=1)
    assert step.gpu_idle_us is not None
    assert gap.time_us_per_step + read.time_us_per_step <= step.gpu_idle_us


def test_waits_of_a_step_together_let_the_host_run_ahead() -> None:
    """Ten waits of 440 µs each in a step, and 3 ms prepared after the last: without them the host is 4.4 ms ahead."""

    def one(host: Program) -> None:
        for us in (*[100] * 9, 3000):
            host.work(GEMM, 100, times=5)
            host.copy(TO_PINNED, "aten::nonzero")
            host.think(us)

    diagnosis = diagnosed(steps(one))
    (step,) = diagnosis.steps
    assert rules(diagnosis) == ["hidden-sync"]
    found = finding(diagnosis, "hidden-sync")
    assert found.time_us_per_step == pytest.approx(step.gpu_idle_us)
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(50 * 100 + 10 * 2, abs=20)


def test_allocations_between_steps_are_not_the_preparations() -> None:
    def one(host: Program) -> None:
        host.work(GEMM, 100, times=20)
        host.work(CHOSEN, 5, op="aten::argmax")
        host.copy(TO_HOST, "aten::to")
        host.call("cudaFree", 600)
        host.think(1000)

    diagnosis = diagnosed(steps(one))
    assert finding(diagnosis, "jit-or-allocator-in-step").time_us_per_step == pytest.approx(600)
    found = finding(diagnosis, "host-gap")
    assert found.time_us_per_step == pytest.approx(8 + 1 + 1 + 1000 + 2 + 1)
    assert not any("same idle time" in note for each in diagnosis.findings for note in each.notes)


# jit-or-allocator-in-step


def test_idle_time_during_allocations_is_gone_with_them() -> None:
    found = finding(diagnosed(jit_or_allocator_in_step.cache_emptied_in_every_step()), "jit-or-allocator-in-step")
    assert found.time_us_per_step == pytest.approx(400 + 3 * 100)
    assert found.evidence.host_call == "cudaFree"
    assert [(group.kernel, group.calls_per_step) for group in found.evidence.groups] == [
        ("cudaFree", 1),
        ("cudaMalloc", 3),
    ]
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(2724 - 700)


def allocating(us: float) -> Kineto:
    def one(host: Program) -> None:
        jit_or_allocator_in_step.step(host)
        host.call("cudaMalloc", us)

    return steps(one)


def test_allocations_of_a_hundredth_of_the_step_are_reported() -> None:
    # the step takes 2,020 µs, and 1 more beside the call
    assert rules(diagnosed(allocating(21))) == ["jit-or-allocator-in-step"]
    assert rules(diagnosed(allocating(20))) == []


def test_a_rare_long_step_costs_its_excess_over_all_steps() -> None:
    diagnosis = diagnosed(jit_or_allocator_in_step.code_loaded_in_one_step())
    found = finding(diagnosis, "jit-or-allocator-in-step")
    assert found.what_if is None
    assert found.severity is Severity.MAJOR
    # 30,000 µs to load, 1 beside it, a wait for half of the work (8 to return, 1 beside it), and 1 and 6 until the GPU
    # begins again; over the 19 steps after the first
    assert found.time_us_per_step == pytest.approx((30_000 + 17) / 19, abs=0.5)
    assert found.evidence.host_call == "cuModuleLoadData"
    assert diagnosis.ladder == []


def test_a_pause_without_any_call_is_a_guess() -> None:
    found = finding(diagnosed(jit_or_allocator_in_step.collector_that_runs_in_one_step()), "jit-or-allocator-in-step")
    assert found.confidence is Confidence.LOW
    assert any("150.0" in note and "collector" in note for note in found.notes)
    assert "gc.freeze()" in found.fix[0].what


def test_the_laboratorys_emptied_cache() -> None:
    case = "allocator-churn-1x1024+1024-pool495552"
    diagnosis, _ = recorded(case, "eager")
    assert rules(diagnosis) == ["jit-or-allocator-in-step"]
    found = diagnosis.findings[0]
    # two steps were kept, with 24 calls of cudaMalloc; the cache is emptied between them, by 12 of cudaFree
    assert [(group.kernel, group.calls_per_step) for group in found.evidence.groups] == [
        ("cudaFree", 12),
        ("cudaMalloc", 12),
    ]
    assert found.what_if is not None
    # of the two steps that were kept only the second gains that the host is ahead
    assert found.what_if.step_us.expected == pytest.approx(healthy_us(case, "eager"), rel=0.12)


# prefill-blocks-decode


def test_interruptions_are_averaged_over_the_decode_steps() -> None:
    diagnosis = diagnosed(prefill_blocks_decode.prompts_between_decode_steps())
    found = finding(diagnosis, "prefill-blocks-decode")
    # each takes 40 ms, a copy of 2 µs, and from one step to the next 8 and 1 to return, 2, 1 and 6 until it begins
    stall_us = 40_000 + 2 + 8 + 1 + 2 + 1 + 6
    assert found.phase == "decode"
    assert found.evidence.us_per_call == pytest.approx(stall_us)
    assert found.time_us_per_step == pytest.approx(3 * stall_us / 40)
    assert found.severity is Severity.MAJOR
    assert found.what_if is None
    assert "2,048 tokens" in found.notes[0]


@pytest.mark.parametrize(("us", "fires"), [(3900, False), (4100, True)])
def test_an_interruption_takes_two_decode_steps(us: float, *, fires: bool) -> None:
    decodes, prompt = prefill_blocks_decode.decodes, prefill_blocks_decode.prompt
    trace = prefill_blocks_decode.served([*decodes(4), prompt(us), *decodes(5), prompt(us), *decodes(6)])
    assert ("prefill-blocks-decode" in rules(diagnosed(trace))) is fires


@pytest.mark.parametrize(("decoding", "fires"), [(2, False), (3, True)])
def test_someone_must_have_waited(decoding: int, *, fires: bool) -> None:
    decodes, prompt = prefill_blocks_decode.decodes, prefill_blocks_decode.prompt
    schedule = [*decodes(decoding), prompt(requests=2)] * 2 + decodes(decoding)
    assert ("prefill-blocks-decode" in rules(diagnosed(prefill_blocks_decode.served(schedule)))) is fires


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
