"""What `fill-in-step` says of fills, and what it never advises; its thresholds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import published_copies
from tests.answers import finding, loud, rules
from tests.decode_steps import Work, eager, graphed
from tests.examples import fill_in_step as examples
from tests.kernel_names import ATTENTION, GEMM
from tests.stages import diagnosed

from stepscope import diagnose
from stepscope.document import Confidence, Diagnosis, Severity

LAB = Path(__file__).parents[2] / "traces"
RULE = "fill-in-step"


def test_recorded_shapes_tell_what_is_filled() -> None:
    found = finding(diagnosed(examples.outputs_allocated_as_zeros()), RULE)
    assert found.confidence is Confidence.MEDIUM  # that they run is sure, that they are not needed is not
    evidence = found.evidence
    assert (evidence.calls_per_step, evidence.input_shape, evidence.target_dtype) == (12, [1, 8, 576], "BFloat16")
    assert (evidence.bytes_per_call, evidence.bytes_per_step) == (8 * 576 * 2, 12 * 8 * 576 * 2)
    assert found.time_us_per_step == pytest.approx(12 * 1.2)


def test_without_an_op_the_name_alone_tells() -> None:
    found = finding(diagnosed(examples.outputs_allocated_as_zeros_in_a_graph()), RULE)
    assert found.confidence is Confidence.LOW
    assert found.evidence.bytes_per_call is None


def test_what_is_not_proved_is_not_advised() -> None:
    found = finding(diagnosed(examples.outputs_allocated_as_zeros()), RULE)
    assert "NaN" in found.control
    assert any("needs its zeros" in note for note in found.notes)
    assert all(fix.needs for fix in found.fix)
    assert not any("empty" in fix.what for fix in found.fix)


def test_fills_before_kernels_that_add_up_are_not_counted() -> None:
    fill = Work(examples.FILL, 1.2)
    needed = [fill, Work(examples.SCATTER_ADD, 4)]
    layer = [fill, Work(GEMM, 8), *needed, Work(ATTENTION, 12)]
    found = finding(diagnosed(graphed([layer * 10] * 3)), RULE)
    (group,) = found.evidence.groups
    assert group.calls_per_step == 10
    assert group.time_us_per_step == pytest.approx(12)
    assert found.title.startswith("10 fills a step")
    assert found.time_us_per_step == pytest.approx(10 * 1.2)


def test_cublas_split_gemms_overwrite_their_output() -> None:
    layer = [Work(examples.FILL, 1.2), Work("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT", 8), Work(ATTENTION, 12)]
    assert loud(diagnosed(graphed([layer * 10] * 3))) == [RULE]


def test_memsets_of_nobody_are_a_question() -> None:
    diagnosis = diagnosed(examples.memsets_of_nobody())
    (said,) = (said for said in diagnosis.could_not_check if said.rule == RULE)
    assert "memsets have no op" in said.missing
    told = diagnosed(examples.counters_that_a_gemm_clears()).could_not_check
    assert [said for said in told if said.rule == RULE] == []


@pytest.mark.parametrize(("calls", "fires"), [(8, True), (7, False)])
def test_as_often_as_the_layers_of_a_small_model(calls: int, *, fires: bool) -> None:
    trace = eager([[examples.ZEROS, Work(ATTENTION, 40)] * calls] * 3)
    assert (RULE in rules(diagnosed(trace))) is fires


@pytest.mark.parametrize(("us", "fires"), [(0.6, True), (0.4, False)])
def test_less_than_half_a_percent_of_what_the_gpu_does_is_not_told(us: float, *, fires: bool) -> None:
    step = [Work(examples.FILL, us), Work(ATTENTION, 100 - us)] * 20
    assert (RULE in rules(diagnosed(graphed([step] * 3)))) is fires


def test_scratch_that_is_filled_in_every_attention_layer() -> None:
    """sglang#33063: three fills a layer."""
    diagnosis = diagnosed(published_copies.scratch_filled_in_every_attention_layer(), model=None, tp=None)
    assert diagnosis.steps[0].duration_us.median == pytest.approx(6_000, abs=1)
    found = finding(diagnosis, RULE)
    assert found.severity is Severity.MINOR
    assert found.evidence.calls_per_step == 3 * 36
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(6_000 - 3 * 36 * 1.2, abs=1)


CASE = "fills-1x1024-pool495552"


def of_lab(case: str, file: str, *, joined: bool = False) -> Diagnosis:
    return diagnose(
        [LAB / case / file],
        model=str(LAB / "config.json"),
        tp=8,
        capture_trace=LAB / case / "capture.json.gz" if joined else None,
    )


@pytest.mark.parametrize("joined", [False, True])
def test_the_laboratorys_step_without_them_is_predicted(*, joined: bool) -> None:
    diagnosis = of_lab(CASE, "graph.json.gz", joined=joined)
    assert loud(diagnosis) == [RULE]
    found = finding(diagnosis, RULE)
    # 16 layers fill two buffers each, 13 of them a third; without shapes one fill of the step is as large as the second
    assert found.title.startswith(f"{45 if joined else 46} fills")
    twin = json.loads((LAB / CASE / "truth.json").read_text())["twin"]
    healthy = of_lab(twin, "graph.json.gz").steps[0].duration_us.median
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(healthy, rel=0.10)


@pytest.mark.parametrize("file", ["eager.json.gz", "stacks.json.gz"])
def test_run_eagerly_they_stand_behind_the_launches(file: str) -> None:
    assert rules(of_lab(CASE, file)) == ["launch-bound", RULE]
