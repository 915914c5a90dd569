"""Built traces of which every difference was worked out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.decode_steps import BETWEEN_GRAPHS_US, Work, copied, eager, graphed
from tests.examples import redundant_cast
from tests.kernel_names import TO_BF16
from tests.kineto import Kineto

import stepscope
from stepscope.document import Verdict
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

POOL_GRID = (557496, 1, 1)
POOL_CAST = Work(TO_BF16, 820.0, grid=POOL_GRID)


def compared(folder: Path, before: Kineto, after: Kineto, **options: Any) -> Any:
    left, right = before.save(folder / "before.json"), after.save(folder / "after.json")
    return stepscope.compare(left, right, **options)


def steps(*work: Work, count: int = 8) -> list[list[Work]]:
    return [list(work)] * count


def waterfall(found: Any) -> dict[str, Any]:
    return {row.name: (row.before_us, row.after_us) for row in found.waterfall}


GEMM, NORM, COPY = Work("nvjet_a", 100.0), Work("rms_norm_kernel", 20.0), Work("direct_copy_kernel", 5.0)


def test_every_difference_of_two_simple_steps(tmp_path: Path) -> None:
    before = graphed(steps(GEMM, NORM, GEMM))
    after = graphed(steps(GEMM._replace(us=130.0), NORM, GEMM._replace(us=130.0), COPY))
    found = compared(tmp_path, before, after)
    assert found.delta_us.expected == pytest.approx(65)
    (pair,) = found.steps
    assert pair.before.duration_us.median == pytest.approx(220 + BETWEEN_GRAPHS_US)
    assert pair.after.duration_us.median == pytest.approx(285 + BETWEEN_GRAPHS_US)
    assert pair.gpu_span_delta_us.expected == pytest.approx(65)
    assert pair.verdict is Verdict.SLOWER
    classes = {row.kernel_class: row for row in found.by_class}
    assert classes["gemm"].delta_us == pytest.approx(60)
    assert classes["norm"].delta_us == pytest.approx(0)
    copied = classes["copy"]
    assert copied.before is None
    assert copied.after is not None
    assert (copied.after.calls_per_step, copied.delta_us) == (1, pytest.approx(5))
    assert copied.after.share_of_step == pytest.approx(5 / 306)
    kernels = {row.kernel: row for row in found.by_kernel}
    gemm = kernels["nvjet_a"]
    assert gemm.before is not None
    assert (gemm.before.calls_per_step, gemm.before.time_us_per_step) == (2, pytest.approx(200))
    assert [row.kernel for row in found.by_kernel][:2] == ["nvjet_a", "direct_copy_kernel"]
    assert kernels["direct_copy_kernel"].before is None
    assert {name: pytest.approx(part) for name, part in waterfall(found).items()} == {
        "gemm": (200, 260),
        "copy": (0, 5),
        "norm": (20, 20),
        "idle": (21, 21),
    }


def test_the_parts_add_up_where_work_overlaps(tmp_path: Path) -> None:
    def overlapping(copy_us: float) -> Kineto:
        trace = Kineto()
        for step in range(6):
            at = 10.0 + 500 * step
            trace.annotation("step[DECODE bs=1]", at - 2, 60)
            trace.call("nvjet_a", at=at, duration=200)
            trace.call("direct_copy_kernel", at=at + 20, duration=copy_us, stream=20)
        return trace

    found = compared(tmp_path, overlapping(50), overlapping(300))
    # the copy starts 20 µs after the GEMM: hidden at first, then 320 − 200 µs of it alone; 500 µs a step throughout
    assert waterfall(found) == {
        "copy": (pytest.approx(0), pytest.approx(120)),
        "gemm": (pytest.approx(200), pytest.approx(200)),
        "idle": (pytest.approx(300), pytest.approx(180)),
    }
    assert next(row for row in found.by_class if row.kernel_class == "copy").delta_us == pytest.approx(250)
    assert found.delta_us.expected == pytest.approx(0)
    assert found.steps[0].verdict is Verdict.NO_DIFFERENCE


def test_a_trace_against_itself_differs_in_nothing(tmp_path: Path) -> None:
    trace = graphed([[GEMM._replace(us=100.0 + step), NORM] for step in range(9)])
    found = compared(tmp_path, trace, trace)
    assert found.delta_us.expected == 0
    assert found.steps[0].verdict is Verdict.NO_DIFFERENCE
    for rows in (found.by_class, found.by_kernel, found.waterfall):
        assert {row.delta_us for row in rows} == {0}
    assert (found.findings.gone, found.findings.new, found.findings.changed) == ([], [], [])
    assert (found.notes, found.unpaired, found.prediction) == ([], [], None)


def test_each_phase_and_batch_size_is_a_pair_of_its_own(tmp_path: Path) -> None:
    def served(kinds: Sequence[tuple[str, float]]) -> Kineto:
        trace = Kineto()
        at = 10.0
        for name, us in kinds:
            for _ in range(6):
                trace.annotation(f"step[{name}]", at - 2, 40)
                trace.call("nvjet_a", at=at, duration=us)
                at += us + 50
        return trace

    before = served([("DECODE bs=1", 100), ("DECODE bs=16", 400), ("EXTEND bs=1 toks=512", 900)])
    after = served([("DECODE bs=1", 110), ("DECODE bs=16", 380), ("DECODE bs=4", 200)])
    found = compared(tmp_path, before, after)
    deltas = {(pair.phase, pair.before.batch_size): pair.delta_us.expected for pair in found.steps}
    assert deltas == {("decode", 1): pytest.approx(10), ("decode", 16): pytest.approx(-20)}
    assert found.delta_us == found.steps[0].delta_us
    lonely = {(row.side, row.phase, row.batch_size, row.count) for row in found.unpaired}
    assert lonely == {("before", "prefill", 1, 6), ("after", "decode", 4, 6)}
    assert {(row.phase, row.batch_size) for row in found.by_kernel} == {("decode", 1), ("decode", 16)}


def test_a_renamed_kernel_is_the_one_at_the_same_places(tmp_path: Path) -> None:
    def layers(norm: Work, activation: Work) -> Kineto:
        return graphed(steps(*[GEMM, norm, GEMM._replace(kernel="nvjet_b"), activation] * 4))

    old = layers(Work("rms_norm_v1", 20.0, grid=(8, 1, 1)), Work("silu_kernel", 10.0, grid=(8, 1, 1)))
    new = layers(Work("fused_rms_norm_v2", 12.0, grid=(8, 1, 1)), Work("silu_v2_kernel", 10.0, grid=(9, 1, 1)))
    found = compared(tmp_path, old, new)
    rows = {row.kernel: row for row in found.by_kernel}
    assert rows["rms_norm_v1"].renamed_to == "fused_rms_norm_v2"
    assert rows["rms_norm_v1"].delta_us == pytest.approx(4 * (12 - 20))
    assert "fused_rms_norm_v2" not in rows
    # of another grid, so of other work
    assert (rows["silu_kernel"].renamed_to, rows["silu_kernel"].after) == (None, None)
    assert rows["silu_v2_kernel"].before is None


def test_a_kernel_of_the_same_shape_elsewhere_is_not_renamed(tmp_path: Path) -> None:
    first, last = Work("rms_norm_v1", 20.0), Work("rms_norm_v2", 20.0)
    found = compared(tmp_path, graphed(steps(first, GEMM, GEMM)), graphed(steps(GEMM, GEMM, last)))
    assert [row.renamed_to for row in found.by_kernel] == [None, None, None]


def story(extra: float) -> tuple[Kineto, Kineto]:
    """78 layers of 400 µs and a cast of 820 µs; then no casts, and other work of so many µs."""
    layer = Work("flash_mla_kernel", 400.0)
    before = graphed(steps(*[POOL_CAST, layer] * 78))
    after = graphed(steps(*[layer] * 78, Work("nvjet_slow", extra)))
    return before, after


def test_a_prediction_that_missed_is_shown_as_a_miss(tmp_path: Path) -> None:
    found = compared(tmp_path, *story(43_000.0), model="glm-5", tp=8, gpu="h200")
    assert [row.rule for row in found.findings.gone] == ["kv-pool-cast"]
    prediction = found.prediction
    assert prediction is not None
    assert prediction.rules == ["kv-pool-cast"]
    assert prediction.step.before_us == pytest.approx(78 * 1220 + 21)
    assert prediction.step.predicted_us.expected == pytest.approx(31_200, abs=50)
    assert prediction.step.measured_us == pytest.approx(74_200 + 21)
    assert prediction.step.unexplained_us == pytest.approx(43_000, abs=50)
    assert prediction.gpu_span.unexplained_us == pytest.approx(43_000, abs=50)
    assert prediction.step.is_miss
    assert prediction.gpu_span.is_miss


def test_a_prediction_that_came_true_is_no_miss(tmp_path: Path) -> None:
    prediction = compared(tmp_path, *story(30.0), model="glm-5", tp=8, gpu="h200").prediction
    assert prediction is not None
    assert not prediction.step.is_miss
    assert prediction.step.unexplained_us == pytest.approx(30, abs=50)


def test_the_other_way_round_the_finding_is_new_and_nothing_was_foretold(tmp_path: Path) -> None:
    before, after = story(30.0)
    found = compared(tmp_path, after, before, model="glm-5", tp=8)
    assert [row.rule for row in found.findings.new] == ["kv-pool-cast"]
    assert found.prediction is None


def test_a_finding_that_shrank_is_changed(tmp_path: Path) -> None:
    layer = Work("flash_mla_kernel", 400.0)
    before, after = (graphed(steps(*[POOL_CAST._replace(us=us), layer] * 78)) for us in (820.0, 410.0))
    found = compared(tmp_path, before, after, model="glm-5", tp=8)
    (row,) = found.findings.changed
    assert (row.rule, row.delta_us) == ("kv-pool-cast", pytest.approx(-78 * 410))
    assert found.prediction is None


def test_what_the_other_trace_cannot_answer_is_not_gone(tmp_path: Path) -> None:
    before = redundant_cast.buffer_that_is_no_weight_cast_in_every_layer()
    after = redundant_cast.unknown_tensor_cast_in_a_graph()
    found = compared(tmp_path, before, after).findings
    assert "redundant-cast" in [row.rule for row in found.cannot_tell]
    assert "redundant-cast" not in [row.rule for row in found.gone]
    back = compared(tmp_path, after, before).findings
    assert "redundant-cast" in [row.rule for row in back.cannot_tell]
    assert "redundant-cast" not in [row.rule for row in back.new]


def test_several_findings_that_are_gone_are_foretold_together(tmp_path: Path) -> None:
    layer = (Work("flash_mla_kernel", 8.0), Work("nvjet_a", 12.0))
    casts = copied(TO_BF16, 40.0, (495_552, 1, 576), "c10::Float8_e4m3fn", "c10::BFloat16")
    before = eager(steps(*[casts, *layer] * 78), pace=30.0)
    found = compared(tmp_path, before, graphed(steps(*layer * 78)), model="glm-5", tp=8)
    assert {row.rule for row in found.findings.gone} == {"kv-pool-cast", "launch-bound"}
    prediction = found.prediction
    assert prediction is not None
    assert set(prediction.rules) == {"kv-pool-cast", "launch-bound"}
    # 234 launches 30 µs apart; without casts and host, 78 × 20 µs of kernels with at most 0.5 µs for each launch
    assert prediction.step.before_us == pytest.approx(234 * 30, rel=0.01)
    assert 1560 <= prediction.step.predicted_us.expected <= 1560 + 234 * 0.5
    assert prediction.step.measured_us == pytest.approx(1560 + BETWEEN_GRAPHS_US)
    assert not prediction.step.is_miss


def test_different_gpus_and_other_work_are_said(tmp_path: Path) -> None:
    after = graphed(steps(Work("cutlass_b", 90.0)))
    after.header["deviceProperties"] = [{"id": 0, "name": "NVIDIA B200"}]
    found = compared(tmp_path, graphed(steps(GEMM)), after)
    assert any("different GPUs" in note for note in found.notes)
    assert any("no kernel is in both" in note for note in found.notes)


def test_a_batch_size_that_only_one_trace_tells_is_taken_for_the_others(tmp_path: Path) -> None:
    after = graphed(steps(GEMM), annotation="step[DECODE]")
    found = compared(tmp_path, graphed(steps(GEMM)), after)
    assert (found.steps[0].before.batch_size, found.steps[0].after.batch_size) == (1, None)
    assert any("does not tell its batch size" in note for note in found.notes)
    assert found.delta_us.expected == pytest.approx(0)


def test_steps_that_are_not_alike_are_refused(tmp_path: Path) -> None:
    after = graphed(steps(GEMM), annotation="step[DECODE bs=16]")
    with pytest.raises(UsageError, match=r"decode steps of batch 1, .* decode steps of batch 16"):
        compared(tmp_path, graphed(steps(GEMM)), after)


def test_a_kernel_of_few_steps_counts_for_those_in_which_it_does_not_run(tmp_path: Path) -> None:
    def sometimes(of: int) -> Kineto:
        extra = Work("memory_kernel", 7.0)
        return graphed([[GEMM, extra] if step % of == 0 else [GEMM] for step in range(9)])

    rows = {row.kernel: row for row in compared(tmp_path, sometimes(1), sometimes(3)).by_kernel}
    row = rows["memory_kernel"]
    assert row.before is not None
    assert row.after is not None
    assert (row.before.calls_per_step, row.before.time_us_per_step) == (1, pytest.approx(7))
    assert (row.after.calls_per_step, row.after.time_us_per_step) == (0, 0)
