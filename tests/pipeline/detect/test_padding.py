"""`padding`: what the live rows alone would take."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.answers import finding, rules
from tests.decode_steps import Work, copied, eager, graphed
from tests.examples.padding import (
    EXPERTS_US,
    LAYERS,
    decode,
    in_a_graph,
    layer,
    rows_told_by_the_shapes_of_multiplications,
    three_requests_in_a_graph_of_sixteen,
)
from tests.kernel_names import ATTENTION, GATHER, TO_BF16
from tests.stages import diagnosed

from stepscope import diagnose
from stepscope.document import Confidence, Severity

LAB = Path(__file__).parents[2] / "traces"
HIT_BY_16 = 256 * (1 - (1 - 8 / 256) ** 16)
HIT_BY_3 = 256 * (1 - (1 - 8 / 256) ** 3)


def test_the_experts_shrink_to_those_that_the_live_rows_hit() -> None:
    diagnosis = diagnosed(three_requests_in_a_graph_of_sixteen())
    found = finding(diagnosis, "padding")
    assert (found.severity, found.confidence) == (Severity.CRITICAL, Confidence.MEDIUM)
    assert found.what_if is not None
    lost_us = LAYERS * EXPERTS_US * (1 - HIT_BY_3 / HIT_BY_16)
    assert found.time_us_per_step == pytest.approx(lost_us)
    assert found.what_if.step_us.expected == pytest.approx(diagnosis.steps[0].duration_us.median - lost_us, abs=2)
    assert found.evidence.live_fraction == pytest.approx(3 / 16)
    assert "Routed at random, 16 rows hit 102 of 256 experts, the live 23." in found.notes


def test_shapes_are_surer_than_grids() -> None:
    assert finding(diagnosed(rows_told_by_the_shapes_of_multiplications()), "padding").confidence is Confidence.HIGH


def test_kernels_of_more_threads_than_run_at_once_shrink_with_the_rows() -> None:
    # 16 × 1,024 blocks of 128 threads; 2 µs of each are its start and end
    gathered = Work(GATHER, 42, grid=(16 * 1024, 1, 1))
    found = finding(diagnosed(in_a_graph(3, [*layer(16, None), gathered])), "padding")
    assert found.time_us_per_step == pytest.approx(LAYERS * 40 * (1 - 3 / 16))
    # fewer than 132 × 2,048 threads take as long for one row
    few = Work(GATHER, 42, grid=(16 * 128, 1, 1))
    assert "padding" not in rules(diagnosed(in_a_graph(3, [*layer(16, None), few])))


def test_attention_is_left_as_it_is() -> None:
    attention = Work(ATTENTION, 400, grid=(16 * 1024, 1, 1))
    assert "padding" not in rules(diagnosed(in_a_graph(3, [*layer(16, None), attention])))


def test_multiplications_that_are_bound_by_arithmetic_shrink_as_their_rooflines_do() -> None:
    multiply = layer(2048, None, shapes=True)[1]._replace(us=80.0)
    found = finding(diagnosed(eager([[multiply] * 78] * 3, annotation=decode(1024))), "padding")
    assert found.time_us_per_step == pytest.approx(78 * 80 / 2, rel=0.01)  # 2,048 → 1,024 rows, both compute-bound


def test_the_pools_cast_is_no_padding_though_its_grid_divides() -> None:
    cast = copied(TO_BF16, 850, (495_552, 1, 576), "c10::Float8_e4m3fn", "c10::BFloat16")
    steps = [[*layer(16, None, shapes=True), cast._replace(grid=(16 * 34_844, 1, 1))] * 78] * 3
    assert rules(diagnosed(eager(steps, annotation=decode(3)))) == ["kv-pool-cast"]


def test_without_a_model_the_experts_are_asked_for() -> None:
    diagnosis = diagnosed(three_requests_in_a_graph_of_sixteen(), model=None, tp=None)
    assert "padding" not in rules(diagnosis)
    (asked,) = (each for each in diagnosis.could_not_check if each.rule == "padding")
    assert "--model" in asked.how_to_capture
    healthy = graphed([layer(3) * LAYERS] * 3, annotation=decode(3))
    assert "padding" not in {each.rule for each in diagnosed(healthy, model=None, tp=None).could_not_check}


def test_padded_multiplications_that_are_slow_besides_have_both_causes() -> None:
    """2,048 rows where 1,024 are live: 51.5 GFLOP take 65.2 µs at 790 TFLOPS; a good kernel 84.6, today's 250."""
    multiply = layer(2048, None, shapes=True)[1]._replace(us=250.0)
    diagnosis = diagnosed(eager([[multiply] * 78] * 3, annotation=decode(1024)))
    assert sorted(rules(diagnosis)) == ["gemm-below-roofline", "padding"]
    good = 2 * 2048 * 6144 * 2048 / 790e6 / 0.8 + 3
    alone = {"padding": 125.0, "gemm-below-roofline": good}
    for found in diagnosis.findings:
        assert found.what_if is not None
        assert found.what_if.step_us.expected == pytest.approx(78 * alone[found.rule], rel=0.01)
        assert not any("Part of it" in note for note in found.notes)
    assert [rung.fixed for rung in diagnosis.ladder] == ["gemm-below-roofline", "padding"]
    assert [rung.step_us for rung in diagnosis.ladder] == pytest.approx([78 * good, 78 * good / 2], rel=0.01)


def test_padded_steps_that_wait_for_the_host_have_both_causes_the_larger_gain_first() -> None:
    """The laboratory's padded steps without a graph; in one they take 8,214 µs, and 3,709 without padding."""
    case = "padding-3x1024-pool495552"
    diagnosis = diagnose([LAB / case / "eager.json.gz"], model=str(LAB / "config.json"), tp=8)
    assert rules(diagnosis) == ["launch-bound", "padding"]
    host, padded = (finding(diagnosis, rule).what_if for rule in ("launch-bound", "padding"))
    assert host is not None
    assert padded is not None
    assert (host.hidden_by, padded.hidden_by) == (["padding"], ["launch-bound"])
    assert padded.gain_fraction == pytest.approx(0, abs=0.001)
    assert padded.gain_fraction_others_fixed > 0.1
    assert host.gain_fraction > padded.gain_fraction_others_fixed
    assert host.step_us.expected == pytest.approx(8214, rel=0.05)
    assert padded.step_us_others_fixed == host.step_us_others_fixed == pytest.approx(3709, rel=0.05)
    assert [rung.fixed for rung in diagnosis.ladder] == ["launch-bound", "padding"]
    assert [rung.step_us for rung in diagnosis.ladder] == pytest.approx([8214, 3709], rel=0.05)
