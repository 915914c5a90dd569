"""What `weight-rematerialised` says of weights that are converted, scaled and transposed; its thresholds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import published_copies
from tests.answers import finding, rules
from tests.decode_steps import Work, copied, eager, graphed
from tests.examples import weight_rematerialised as examples
from tests.examples.weight_rematerialised import BF16, FP8, REST, SCALE, matmul
from tests.kernel_names import ATTENTION, GEMM, STRIDED_COPY, TO_BF16
from tests.stages import diagnosed

from stepscope import diagnose
from stepscope.document import Confidence, Diagnosis, Severity

LAB = Path(__file__).parents[2] / "traces"
RULE = "weight-rematerialised"


def test_the_multiplication_by_scales_is_part_of_it_and_so_is_the_cast_alone() -> None:
    diagnosis = diagnosed(examples.weight_converted_and_scaled())
    assert rules(diagnosis) == [RULE]
    found = finding(diagnosis, RULE)
    assert found.confidence is Confidence.HIGH
    assert found.time_us_per_step == pytest.approx(10 * (40 + 30))
    assert [group.time_us_per_step for group in found.evidence.groups] == pytest.approx([400, 300])
    assert {group.tensor for group in found.evidence.groups} == {"weight o_proj [6144, 2048]"}
    assert any("Part of it is what redundant-cast finds: 400.0 µs" in note for note in found.notes)
    assert "20 kernels a step" in found.title
    evidence = found.evidence
    assert (evidence.source_dtype, evidence.target_dtype) == ("Float8_e4m3fn", "BFloat16")
    assert evidence.bytes_per_call == 6144 * 2048 * (1 + 2)
    assert "251.7 MB more memory" in str(found.fix[1].needs)  # 10 × 6144 × 2048 × 2 bytes, had each layer its own


def test_without_shapes_a_weight_is_known_by_its_size_before_a_gemm() -> None:
    found = finding(diagnosed(examples.weight_converted_and_scaled_in_a_graph()), RULE)
    assert found.confidence is Confidence.MEDIUM
    assert found.time_us_per_step == pytest.approx(10 * (40 + 30))
    assert found.evidence.tensor == "weight q_a_proj or o_proj, 12,582,912 elements"
    assert (found.evidence.source_dtype, found.evidence.target_dtype) == (None, "BFloat16")
    assert any("read off the launches' sizes" in note for note in found.notes)


def test_what_only_a_name_tells_is_doubtful() -> None:
    found = finding(diagnosed(examples.dequantisation_by_a_kernel_of_that_name_in_a_graph()), RULE)
    assert found.confidence is Confidence.LOW
    assert found.evidence.bytes_per_call is None
    assert found.time_us_per_step == pytest.approx(400)


def test_in_a_prefill_a_kernel_that_dequantises_before_a_gemm_is_as_it_should_be() -> None:
    step = [Work(examples.DEQUANTISE, 40), matmul(1), *REST] * 10
    assert RULE not in rules(diagnosed(graphed([step] * 3, annotation="step[EXTEND bs=1 toks=4096]")))


def test_only_the_chains_that_end_in_a_gemm_count() -> None:
    cast, scale = (Work(name, 40, grid=examples.O_PROJ_BLOCKS) for name in (TO_BF16, SCALE))
    step = [cast, scale, matmul(1), *REST, scale, matmul(1), cast, Work(ATTENTION, 12)] * 10
    found = finding(diagnosed(graphed([step] * 3)), RULE)
    assert [group.calls_per_step for group in found.evidence.groups] == [10, 10]
    assert found.time_us_per_step == pytest.approx(10 * (40 + 40))  # neither the lone scale nor the lone cast


def test_the_step_without_it_is_shorter_by_its_kernels() -> None:
    diagnosis = diagnosed(examples.weight_converted_and_scaled_in_a_graph())
    found = finding(diagnosis, RULE)
    assert found.what_if is not None
    assert diagnosis.steps[0].duration_us.median - found.what_if.step_us.expected == pytest.approx(700, abs=1)


def test_where_the_host_is_the_limit_it_gains_the_time_of_its_ops() -> None:
    cast = copied(TO_BF16, 2, (6144, 2048), FP8, BF16)
    diagnosis = diagnosed(eager([[cast, matmul(1), Work(ATTENTION, 2)] * 10] * 3, pace=20))
    found = finding(diagnosis, RULE)
    assert found.what_if is not None
    gained = diagnosis.steps[0].duration_us.median - found.what_if.step_us.expected
    assert gained == pytest.approx(10 * 6, abs=3)  # an op of 6 µs around each launch: the rest of 20 µs stays


@pytest.mark.parametrize(("columns", "fires"), [(512, True), (511, False)])
def test_a_weight_of_less_than_half_a_mi_is_too_small(columns: int, *, fires: bool) -> None:
    copy = copied(STRIDED_COPY, 10, (1024, columns), BF16, BF16)
    assert (RULE in rules(diagnosed(eager([[copy, matmul(1, columns, 1024), *REST] * 10] * 3)))) is fires


@pytest.mark.parametrize(("us", "fires"), [(6.0, True), (4.0, False)])
def test_less_than_half_a_percent_of_the_step_is_not_told(us: float, *, fires: bool) -> None:
    cast = copied(TO_BF16, us, (6144, 2048), FP8, BF16)
    step = [cast, Work(GEMM, 1000 - us, "aten::mm", [[1, 6144], [6144, 2048]], [BF16, BF16])]
    assert (RULE in rules(diagnosed(eager([step] * 3)))) is fires


@pytest.mark.parametrize(("batch", "fires"), [(32, True), (256, False)])
def test_by_size_alone_an_activation_of_many_tokens_may_be_as_large(batch: int, *, fires: bool) -> None:
    # 16 × 6,144 elements a token are the most that one is taken to have: 12,582,912 / 98,304 = 128 tokens
    cast = Work(TO_BF16, 40, grid=examples.O_PROJ_BLOCKS)
    trace = graphed([[cast, matmul(batch), *REST] * 10] * 3, annotation=f"step[DECODE bs={batch}]")
    assert (RULE in rules(diagnosed(trace))) is fires


def test_what_no_model_tells_is_asked_where_it_matters() -> None:
    unknown = diagnosed(examples.weight_converted_and_scaled_in_a_graph(), model=None, tp=None)
    assert [said.missing for said in unknown.could_not_check if said.rule == RULE]
    far = diagnosed(examples.large_casts_that_no_gemm_follows(), model=None, tp=None)
    assert [said for said in far.could_not_check if said.rule == RULE] == []


def test_dequantisation_is_not_among_the_suspects_that_are_ruled_out_once_it_is_found() -> None:
    diagnosis = diagnosed(examples.weight_converted_and_scaled())
    assert "weight dequantisation" not in {row.hypothesis for row in diagnosis.ruled_out}


def test_a_diffusion_model_that_dequantises_in_every_forward() -> None:
    """sglang#34305: 2,639 casts of 186 ms in 1.42 s are 13.1%; with the multiplications more."""
    diagnosis = diagnosed(published_copies.weights_dequantised_in_every_denoising_step(), model=None, tp=None)
    (steps,) = diagnosis.steps
    assert steps.duration_us.median == pytest.approx(1_420_000 / 5, rel=0.001)
    found = finding(diagnosis, RULE)
    assert found.severity is Severity.MAJOR
    assert found.share_of_step >= 0.131
    assert found.evidence.groups[0].time_us_per_step / steps.duration_us.median == pytest.approx(0.131, abs=0.0005)
    assert found.what_if is not None
    left = 1_420_000 / 5 - 528 * (186_000 / 2_639 + 31)
    assert found.what_if.step_us.expected == pytest.approx(left, rel=0.001)


CASE = "weight-dequant-per-step-1x1024-pool495552"


def of_lab(case: str, file: str, *, joined: bool = False) -> Diagnosis:
    return diagnose(
        [LAB / case / file],
        model=str(LAB / "config.json"),
        tp=8,
        capture_trace=LAB / case / "capture.json.gz" if joined else None,
    )


@pytest.mark.parametrize("joined", [False, True])
def test_the_laboratorys_step_without_it_is_predicted(*, joined: bool) -> None:
    found = of_lab(CASE, "graph.json.gz", joined=joined).findings[0]
    assert found.rule == RULE
    assert found.confidence is (Confidence.HIGH if joined else Confidence.MEDIUM)
    twin = json.loads((LAB / CASE / "truth.json").read_text())["twin"]
    healthy = of_lab(twin, "graph.json.gz").steps[0].duration_us.median
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(healthy, rel=0.10)


@pytest.mark.parametrize("file", ["eager.json.gz", "stacks.json.gz"])
def test_run_eagerly_it_stands_behind_the_launches(file: str) -> None:
    assert rules(of_lab(CASE, file)) == ["launch-bound", RULE]
