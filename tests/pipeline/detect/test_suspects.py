"""The usual suspects: what each takes, and why it is not the cause or that it cannot be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.decode_steps import Work, copied, eager, graphed
from tests.kernel_names import ADD, ATTENTION, TO_BF16
from tests.stages import diagnosed

if TYPE_CHECKING:
    from stepscope.document import Diagnosis, RuledOut

MOE = "fused_moe_kernel"
SUSPECTS = ["MoE GEMM", "routing", "collectives", "attention", "sampling", "weight dequantisation", "host launch"]


def row(diagnosis: Diagnosis, hypothesis: str) -> RuledOut:
    (found,) = (row for row in diagnosis.ruled_out if row.hypothesis == hypothesis)
    return found


def test_every_suspect_is_looked_at_in_every_phase() -> None:
    diagnosis = diagnosed(eager([[Work(ADD, 20)] * 30] * 3))
    assert [row.hypothesis for row in diagnosis.ruled_out] == SUSPECTS
    assert {row.phase for row in diagnosis.ruled_out} == {"decode"}


def test_launching_is_no_suspect_where_it_is_a_finding() -> None:
    diagnosis = diagnosed(eager([[Work(ADD, 2)] * 100] * 3))
    assert [row.hypothesis for row in diagnosis.ruled_out] == SUSPECTS[:-1]


def test_what_takes_little_cannot_be_the_cause_and_what_takes_much_cannot_be_told() -> None:
    # steps of 1,000: experts 90, attention 110, the rest of it one kernel; routing does not run
    diagnosis = diagnosed(eager([[Work(MOE, 90), Work(ATTENTION, 110), Work(ADD, 800)]] * 3))
    experts, attention = row(diagnosis, "MoE GEMM"), row(diagnosis, "attention")
    assert experts.time_us_per_step == 90
    assert experts.share_of_step == pytest.approx(0.09)
    assert "even without it the step would be at most 90.0 µs shorter" in experts.reason
    assert attention.time_us_per_step == 110
    assert attention.share_of_step == pytest.approx(0.11)
    assert "cannot be told" in attention.reason
    assert row(diagnosis, "routing").time_us_per_step == 0
    assert "no top-k or expert-sorting kernel ran" in row(diagnosis, "routing").reason


def test_a_copy_that_is_no_weight_is_said_to_be_none_with_its_numbers() -> None:
    cast = Work(TO_BF16, 800, grid=(557_496, 1, 1))
    reason = row(diagnosed(graphed([[cast, Work(ADD, 5)]] * 3)), "weight dequantisation").reason
    assert "285.4 M elements: neither w13's 805.3 M nor w2's 402.7 M, nor any other weight's" in reason


def test_a_dense_models_largest_weights_are_named() -> None:
    """Llama-3.1-8B at TP 2: 64,128 rows of the vocabulary, 4096 wide."""
    cast = Work(TO_BF16, 800, grid=(557_496, 1, 1))
    found = row(diagnosed(graphed([[cast, Work(ADD, 5)]] * 3), model="llama-3.1-8b", tp=2), "weight dequantisation")
    assert "neither embedding's 262.7 M nor lm_head's 262.7 M, nor any other weight's" in found.reason


def test_a_copy_as_large_as_a_weight_cannot_be_told_from_it() -> None:
    cast = Work(TO_BF16, 800, grid=(786_432, 1, 1))  # 402,653,184 elements: w2
    found = row(diagnosed(graphed([[cast, Work(ADD, 5)]] * 3)), "weight dequantisation")
    assert found.time_us_per_step == 800
    assert "402.7 M elements, as many as w2 has" in found.reason


def test_without_a_model_no_weight_is_known() -> None:
    cast = copied(TO_BF16, 800, (6144, 2048), "c10::Float8_e4m3fn", "c10::BFloat16")
    found = row(diagnosed(eager([[cast, Work(ADD, 5)]] * 3), model=None, tp=None), "weight dequantisation")
    assert "12.6 M elements; --model and --tp tell whether that is a weight" in found.reason


def test_launching_is_ruled_out_with_the_gpus_idle_time() -> None:
    found = row(diagnosed(graphed([[Work(ADD, 100)] * 10] * 3)), "host launch")
    assert found.time_us_per_step == pytest.approx(21)  # between two graphs
    assert found.share_of_step == pytest.approx(21 / 1021)
    assert "the GPU is idle for 2.1% of the step" in found.reason


def test_few_launches_are_not_blamed_though_every_gap_ends_after_one() -> None:
    found = row(diagnosed(eager([[Work(ADD, 2)] * 4] * 3)), "host launch")
    assert "with 4 gaps there are too few launches to blame them" in found.reason


def test_a_small_copy_is_told_in_full() -> None:
    cast = copied(TO_BF16, 800, (4, 100), "c10::Float8_e4m3fn", "c10::BFloat16")
    found = row(diagnosed(eager([[cast, Work(ADD, 5)]] * 3)), "weight dequantisation")
    assert "the largest copy moves 400 elements: neither w13's 805.3 M" in found.reason


def test_a_smaller_copy_may_be_a_weight_beside_a_large_one_that_is_none() -> None:
    pool, weight = Work(TO_BF16, 800, grid=(557_496, 1, 1)), Work(TO_BF16, 200, grid=(24_576, 1, 1))  # 2048 × 6144
    found = row(diagnosed(graphed([[pool, weight, Work(ADD, 5)]] * 3)), "weight dequantisation")
    assert found.time_us_per_step == 200
    assert "cannot be told: a copy moves 12.6 M elements, as many as q_a_proj has" in found.reason


def test_quantisation_kernels_are_not_ruled_out_by_the_size_of_a_copy() -> None:
    quantised = Work("per_token_group_quant_fp8", 500)
    cast = Work(TO_BF16, 500, grid=(557_496, 1, 1))
    reason = row(diagnosed(graphed([[cast, quantised]] * 3)), "weight dequantisation").reason
    assert "neither w13's" in reason
    assert "cannot be told" in reason


def test_what_no_name_tells_may_be_any_of_them() -> None:
    diagnosis = diagnosed(graphed([[Work("zzz", 100), Work(ADD, 300)]] * 3))
    assert "cannot be told: no top-k or expert-sorting kernel is known by its name" in row(diagnosis, "routing").reason


def test_idle_time_is_not_told_of_an_incomplete_trace() -> None:
    trace = eager([[Work(ADD, 2)] * 100] * 3)
    trace.annotation("step[DECODE bs=1]", 5000, 90)
    trace.launch(5010, 5)  # its GPU row was not recorded
    diagnosis = diagnosed(trace)
    assert not diagnosis.traces[0].complete
    found = row(diagnosis, "host launch")
    assert found.time_us_per_step is None
    assert "cannot be told" in found.reason
    assert not diagnosis.findings
    assert [said.rule for said in diagnosis.could_not_check] == ["launch-bound"]
