"""What `layout-copy` says of strided copies; its thresholds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import published_copies
from tests.answers import finding, loud, rules
from tests.decode_steps import Work, eager, graphed
from tests.examples import layout_copy as examples
from tests.kernel_names import ATTENTION, STRIDED_COPY
from tests.stages import diagnosed

from stepscope import diagnose
from stepscope.document import Confidence, Diagnosis, Severity

LAB = Path(__file__).parents[2] / "traces"
SHARED = Path(__file__).parents[4] / "shared/traces/public/TraceLens"
RULE = "layout-copy"


def test_recorded_shapes_tell_what_is_copied() -> None:
    found = finding(diagnosed(examples.copies_around_every_product()), RULE)
    assert found.confidence is Confidence.HIGH
    evidence = found.evidence
    assert evidence.calls_per_step == 24
    assert evidence.input_shape == [16, 8, 512]
    assert evidence.bytes_per_call == 16 * 8 * 512 * (2 + 2)
    assert found.time_us_per_step == pytest.approx(24 * 2.4)


def test_without_shapes_the_kernels_name_alone_tells() -> None:
    found = finding(diagnosed(examples.copies_around_every_product_in_a_graph()), RULE)
    assert found.confidence is Confidence.LOW
    assert found.evidence.bytes_per_call is None
    assert any("kernel's name" in note for note in found.notes)


def test_the_step_is_predicted_without_the_copies() -> None:
    diagnosis = diagnosed(examples.copies_around_every_product_in_a_graph())
    found = finding(diagnosis, RULE)
    assert found.what_if is not None
    gained = diagnosis.steps[0].duration_us.median - found.what_if.step_us.expected
    assert gained == pytest.approx(24 * 2.4, abs=0.5)


def test_copies_that_others_hide_gain_nothing() -> None:
    """vllm#50847: 93 copies, neutral."""
    found = finding(diagnosed(examples.copies_beside_other_work()), RULE)
    assert found.evidence.calls_per_step == 93
    assert found.severity is Severity.INFO
    assert found.what_if is not None
    assert found.what_if.gain_fraction == pytest.approx(0, abs=0.001)


def test_copies_after_each_layers_product_rank_low() -> None:
    """sglang#24405: 62 copies of 4.63 µs in 20 ms are real, 287 µs, and 1.4% of the step."""
    diagnosis = diagnosed(published_copies.copies_after_each_layers_product(), model=None, tp=None)
    assert diagnosis.steps[0].duration_us.median == pytest.approx(20_000, abs=1)
    found = finding(diagnosis, RULE)
    assert found.severity is Severity.INFO
    assert found.evidence.calls_per_step == 62
    assert found.time_us_per_step == pytest.approx(287, abs=0.5)
    assert found.what_if is not None
    assert found.what_if.gain_fraction == pytest.approx(0.0144, abs=0.0002)
    assert loud(diagnosis) == []


@pytest.mark.parametrize(("calls", "fires"), [(8, True), (7, False)])
def test_as_often_as_the_layers_of_a_small_model(calls: int, *, fires: bool) -> None:
    trace = eager([[examples.BY_HEAD, Work(ATTENTION, 40)] * calls] * 3)
    assert (RULE in rules(diagnosed(trace))) is fires


@pytest.mark.parametrize(("us", "fires"), [(0.6, True), (0.4, False)])
def test_less_than_half_a_percent_of_what_the_gpu_does_is_not_told(us: float, *, fires: bool) -> None:
    step = [Work(STRIDED_COPY, us), Work(ATTENTION, 100 - us)] * 20
    assert (RULE in rules(diagnosed(graphed([step] * 3)))) is fires


CASE = "layout-copies-16x1024-pool495552"


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
    assert found.evidence.calls_per_step in {16, 32}  # of the largest of three groups: four copies in 16 layers
    assert found.title.startswith("64 strided copies")
    twin = json.loads((LAB / CASE / "truth.json").read_text())["twin"]
    healthy = of_lab(twin, "graph.json.gz").steps[0].duration_us.median
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(healthy, rel=0.01)


@pytest.mark.parametrize("file", ["eager.json.gz", "stacks.json.gz"])
def test_run_eagerly_they_stand_behind_the_launches(file: str) -> None:
    assert rules(of_lab(CASE, file)) == ["launch-bound", RULE]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real traces are not beside the repository")
@pytest.mark.parametrize(
    ("trace", "calls"),
    [
        ("h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", 4 * 24),
        ("inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz", 2 * 36),
    ],
)
def test_what_transformers_and_sglang_copy_in_every_layer(trace: str, calls: int) -> None:
    """Queries, keys, values and the result of attention; what SGLang slices out of a fused projection."""
    found = finding(diagnose([SHARED / trace]), RULE)
    assert found.severity is Severity.MINOR
    assert found.title.startswith(f"{calls} strided copies")
