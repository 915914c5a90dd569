"""The usual suspects: what each takes, and why it is not the cause or that it cannot be told."""

from __future__ import annotations

import re
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from tests.decode_ranks import ALL_REDUCE
from tests.decode_steps import STEP, Work, copied, eager, graphed
from tests.examples import low_precision_slower as low
from tests.examples.fill_in_step import FILL
from tests.kernel_names import ADD, ATTENTION, COPY_BF16, GEMM, TO_BF16
from tests.kineto import Kineto
from tests.stages import diagnosed

from stepscope import units
from stepscope.hardware import best_known, find_gpu
from stepscope.pipeline.detect.rule import CANNOT_BE_TOLD
from stepscope.report import Format, draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.document import Diagnosis, RuledOut

BF16 = "c10::BFloat16"
MOE = "fused_moe_kernel"
SUSPECTS = ["MoE GEMM", "routing", "collectives", "attention", "sampling", "weight dequantisation", "host launch"]


def row(diagnosis: Diagnosis, hypothesis: str) -> RuledOut:
    (found,) = (row for row in diagnosis.ruled_out if row.hypothesis == hypothesis)
    return found


def test_every_suspect_is_looked_at_in_every_phase() -> None:
    diagnosis = diagnosed(eager([[Work(ADD, 20)] * 30] * 3))
    assert [row.hypothesis for row in diagnosis.ruled_out if row.rule is None] == SUSPECTS
    assert {row.phase for row in diagnosis.ruled_out} == {"decode"}


def test_launching_is_no_suspect_where_it_is_a_finding() -> None:
    diagnosis = diagnosed(eager([[Work(ADD, 2)] * 100] * 3))
    assert [row.hypothesis for row in diagnosis.ruled_out if row.rule is None] == SUSPECTS[:-1]


def test_what_takes_little_cannot_be_the_cause_and_what_takes_much_cannot_be_told() -> None:
    # steps of 1,000: experts 90, attention 110, the rest of it one kernel; routing does not run
    diagnosis = diagnosed(eager([[Work(MOE, 90), Work(ATTENTION, 110), Work(ADD, 800)]] * 3))
    experts, attention = row(diagnosis, "MoE GEMM"), row(diagnosis, "attention")
    assert experts.time_us_per_step == 90
    assert experts.share_of_step == pytest.approx(0.09)
    assert experts.reason == "9% of the step, which is all that could be gained"
    assert not experts.undecided
    assert attention.time_us_per_step == 110
    assert attention.share_of_step == pytest.approx(0.11)
    assert attention.reason == (
        "11% of the step; whether its work needs that cannot be told: how many tokens are live is not known (--context)"
    )
    assert attention.undecided
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
    assert found.undecided
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


@pytest.mark.parametrize(
    ("host", "told"),
    [
        (600, "the GPU is idle for 80% of the step, mostly while the host launches a graph"),
        (100, "something else on the host may hold it up"),
    ],
)
def test_idle_time_within_a_graphs_launch_is_said_to_be_the_launchs(host: float, told: str) -> None:
    """Steps of 1,000 µs: the launch of a graph ends at 655, its 100 kernels of 2 µs begin at 660, 1 µs apart."""
    trace = Kineto()
    for at in (0.0, 1_000.0, 2_000.0, 3_000.0):
        trace.annotation(STEP, at, 990)
        correlation = trace.launch(at + 655 - host, host, name="cudaGraphLaunch")
        for index in range(100):
            trace.kernel(ADD, at + 660 + 3 * index, 2, correlation=correlation)
    found = row(diagnosed(trace), "host launch")
    assert found.time_us_per_step == 800
    assert found.undecided
    assert told in found.reason


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


def rule_row(diagnosis: Diagnosis, rule: str) -> RuledOut | None:
    return next((row for row in diagnosis.ruled_out if row.rule == rule), None)


def test_a_rule_that_found_nothing_is_named_with_the_time_of_what_it_looked_at() -> None:
    copies = Work(COPY_BF16, 30, "aten::copy_", [[64, 64], [64, 64], []], [BF16, BF16, "Scalar"])
    diagnosis = diagnosed(eager([[Work(ADD, 20), Work(FILL, 10), copies] * 10] * 3))
    found = rule_row(diagnosis, "layout-copy")
    assert found is not None
    assert (found.hypothesis, found.time_us_per_step) == ("layout copy", 300)
    assert found.share_of_step == pytest.approx(0.5)
    assert found.reason == "nothing of the kind among its kernels of copy"


def test_a_rule_whose_kernels_did_not_run_has_no_time() -> None:
    found = rule_row(diagnosed(eager([[Work(ADD, 20)] * 30] * 3)), "fill-in-step")
    assert found is not None
    assert found.time_us_per_step == 0
    assert found.reason == "no kernel of its classes ran in the step: fill, memset"


def test_a_rule_that_looks_at_the_host_has_no_time_of_its_own() -> None:
    found = rule_row(diagnosed(graphed([[Work(ADD, 100)] * 10] * 3)), "hidden-sync")
    assert found is not None
    assert found.time_us_per_step is None
    assert found.share_of_step is None


def test_a_rule_that_found_or_asked_something_or_judges_other_phases_is_not_named() -> None:
    diagnosis = diagnosed(eager([[Work(FILL, 20), Work(ADD, 20)] * 30] * 3))
    assert "fill-in-step" in {finding.rule for finding in diagnosis.findings}
    named = {row.rule for row in diagnosis.ruled_out}
    asked = {row.rule for row in diagnosis.could_not_check}
    assert "fill-in-step" not in named
    assert named.isdisjoint(asked)
    assert "lm-head-all-tokens" not in named  # it judges no decode
    assert {"padding", "prefill-blocks-decode", "host-gap"} <= named | asked


def test_what_several_ranks_or_a_suspect_of_its_own_tell_is_not_named_twice() -> None:
    named = {row.rule for row in diagnosed(eager([[Work(ADD, 20)] * 30] * 3)).ruled_out}
    suspects = {"slow-collective", "rank-skew", "weight-rematerialised", "launch-bound", "slow-sampling"}
    assert named.isdisjoint(suspects)


def test_multiplications_say_how_near_they_come() -> None:
    """25.2 MB take 5.86 µs of an H200; a good kernel 10.32, and 12.4 are 1.2 times that."""
    product = Work(GEMM, 12.4, "aten::mm", [[1, 6144], [6144, 2048]], [BF16, BF16])
    unknown = Work(GEMM, 37.2)
    found = rule_row(diagnosed(eager([[product, unknown] * 10] * 3)), "gemm-below-roofline")
    assert found is not None
    assert found.time_us_per_step == pytest.approx(496)
    assert (
        found.reason == "sizes are known of 25% of it; there no call takes more than 1.2 times what a good kernel does"
    )


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        ("NVIDIA H200", "cannot be told: the sizes of multiplications by weights are not known"),
        ("NVIDIA H999", "cannot be told: the rates of this GPU are not known"),
    ],
)
def test_multiplications_that_cannot_be_judged_say_so(gpu: str, reason: str) -> None:
    trace = graphed([[Work(GEMM, 30)] * 10] * 3)
    trace.header["deviceProperties"] = [{"id": 0, "name": gpu}]
    found = rule_row(diagnosed(trace), "gemm-below-roofline")
    assert found is not None
    assert found.reason == reason


def test_the_terminal_names_what_takes_next_to_nothing_in_one_line() -> None:
    drawing = StringIO()
    draw(diagnosed(eager([[Work(ADD, 20)] * 30] * 3)), Format.TERMINAL, drawing)
    text = " ".join(drawing.getvalue().split())
    (line,) = re.findall(r"also looked for (.*?): nothing of the kind, or less than 1% of the step", text)
    named = set(line.split(", "))
    assert {"fill in step", "hidden sync", "kv pool cast", "layout copy", "MoE GEMM", "sampling"} <= named
    assert "unfused elementwise 600.0 µs a step; nothing of the kind among its kernels of elementwise" in text


@pytest.mark.parametrize(
    ("build", "us", "reason"),
    [
        (low.marlin_on_one_token, 140, "calls in fewer bits whose sizes are known take no longer than in 16"),
        (low.slow_in_16_bits, 0, "no multiplication in fewer bits than 16 is known"),
    ],
)
def test_kernels_in_fewer_bits_are_named_with_their_time(build: Callable[[], Kineto], us: float, reason: str) -> None:
    found = rule_row(diagnosed(build()), "low-precision-slower")
    assert found is not None
    assert (found.time_us_per_step, found.reason) == (us, reason)


def test_kernels_in_fewer_bits_of_unknown_sizes_cannot_be_told() -> None:
    found = rule_row(diagnosed(low.steps(Work(low.MARLIN, 14.0), annotation=STEP)), "low-precision-slower")
    assert found is not None
    assert found.time_us_per_step == 140
    assert "cannot be told" in found.reason


def drawn(diagnosis: Diagnosis) -> str:
    drawing = StringIO()
    draw(diagnosis, Format.TERMINAL, drawing)
    return " ".join(drawing.getvalue().split())


TYPES = [BF16, BF16, BF16, "float", "int"]


def experts(us: float, tokens: int = 1) -> Work:
    """w13 and w2 of 8 of 64 experts a token: 75.5 MB for one token, 17.56 µs at an H200's 4,300 GB/s."""
    shapes = [[tokens, 6144], [64, 512, 6144], [64, 6144, 256], [tokens, 8], [tokens, 8]]
    return Work(MOE, us, "sglang::inplace_fused_experts", shapes, TYPES, (128, 1, 1))


def test_experts_say_how_much_of_their_time_their_weights_need() -> None:
    found = row(diagnosed(eager([[experts(20), Work(ADD, 80)] * 10] * 3)), "MoE GEMM")
    assert not found.undecided
    # 17.56 of 20 µs, ten times; 200 of 1,000
    assert found.reason == "20% of the step; its work needs at least 175.6 µs of it, 87.8%"


def test_of_experts_that_are_known_in_part_that_part_is_told() -> None:
    diagnosis = diagnosed(eager([[experts(20), Work(MOE, 60), Work(ADD, 80)] * 10] * 3))
    assert row(diagnosis, "MoE GEMM").reason == (
        "50% of the step; known of 25% of it, its work needs at least 87.8% of that; of the rest no shapes were"
        " recorded (--capture-trace, or record_shapes=True)"
    )


def test_what_a_batch_needs_of_its_experts_rests_on_an_assumption() -> None:
    trace = eager([[experts(200, 4), Work(ADD, 100)] * 10] * 3, annotation="step[DECODE bs=4]")
    assert "its work, if experts are hit at random, needs at least" in row(diagnosed(trace), "MoE GEMM").reason


@pytest.mark.parametrize(
    ("gpu", "model", "missing"),
    [
        ("NVIDIA H200", "glm-5", "no shapes were recorded (--capture-trace, or record_shapes=True)"),
        ("NVIDIA H999", "glm-5", "the rates of this GPU are not known"),
    ],
)
def test_what_is_missing_to_judge_experts_is_said(gpu: str, model: str | None, missing: str) -> None:
    trace = graphed([[Work(MOE, 90), Work(ADD, 100)] * 10] * 3)
    trace.header["deviceProperties"] = [{"id": 0, "name": gpu}]
    diagnosis = diagnosed(trace, model=model)
    assert row(diagnosis, "MoE GEMM").reason.endswith(f"cannot be told: {missing}")
    text = drawn(diagnosis)
    assert "gemm below roofline 900.0 µs a step; cannot be told" in text
    assert "MoE GEMM" not in text  # the rule says the same of all multiplications


def test_attention_asks_for_the_model_and_then_for_the_tokens() -> None:
    trace = graphed([[Work(ATTENTION, 15)] * 78] * 3)
    without, with_model = (
        row(diagnosed(trace, model=model, tp=tp), "attention") for model, tp in ((None, None), ("glm-5", 8))
    )
    assert without.reason.endswith("cannot be told: the model is not known (--model and --tp)")
    alone = row(diagnosed(trace, tp=None), "attention")
    assert alone.reason.endswith("cannot be told: how many ranks share it is not known (--tp)")
    assert with_model.reason.endswith("cannot be told: how many tokens are live is not known (--context)")
    told = row(diagnosed(trace, context=1024), "attention")
    assert "its work needs at least" in told.reason
    assert told.undecided  # 3.7% of 1.17 ms: what the rest is for, nothing tells
    near = row(diagnosed(graphed([[Work(ATTENTION, 1)] * 78] * 3), context=1024), "attention")
    assert near.reason.endswith("its work needs at least 42.9 µs of it, 55%")
    assert not near.undecided


def test_collectives_are_held_against_the_best_known_time_for_their_bytes() -> None:
    """GLM-5's 6,144 values in 16 bits for one token, 12 kB: at TP 8 the best known time is that of the data file."""
    best = best_known(find_gpu("h200", None), "all-reduce", 12_288, 8)
    assert best is not None
    trace = graphed([[Work(ALL_REDUCE, best.us * 1.25), Work(ADD, 20)] * 156] * 3)
    found = row(diagnosed(trace), "collectives")
    assert found.reason.endswith(
        f"for their bytes the best known time is at least {units.time(156 * best.us)} of it, 80%"
    )
    unknown = row(diagnosed(trace, model=None, tp=None), "collectives")
    assert "cannot be told: how many bytes they carry is not known" in unknown.reason


def test_a_suspect_whose_kernels_a_finding_is_about_refers_to_it() -> None:
    diagnosis = diagnosed(eager([[experts(90), Work(ADD, 100)] * 10] * 3))
    assert "gemm-below-roofline" in {finding.rule for finding in diagnosis.findings}
    assert row(diagnosis, "MoE GEMM").reason == "47.4% of the step; what of it is too much, the findings tell"


def test_what_a_rule_looked_at_is_without_what_a_finding_is_about() -> None:
    """The pool's casts take 800 of 830 µs of casts: what redundant-cast ruled out is the rest."""
    pool, other = Work(TO_BF16, 800, grid=(557_496, 1, 1)), copied(TO_BF16, 30, (64, 64), "c10::Half", BF16)
    diagnosis = diagnosed(graphed([[*[pool] * 78, other, Work(ADD, 5)]] * 3))
    assert "kv-pool-cast" in {finding.rule for finding in diagnosis.findings}
    found = rule_row(diagnosis, "redundant-cast")
    assert found is not None
    assert found.time_us_per_step == pytest.approx(30, rel=0.01)


def test_a_copy_that_takes_next_to_nothing_raises_no_question() -> None:
    for us, undecided in ((25, True), (15, False)):  # of 2,000 and the copy: 1.2 and 0.7%
        cast = Work(TO_BF16, us, grid=(24_576, 1, 1))  # 2048 × 6144, as many elements as q_a_proj has
        found = row(diagnosed(graphed([[cast, Work(ADD, 2000)]] * 3)), "weight dequantisation")
        assert found.undecided is undecided
        assert found.reason == (
            f"{CANNOT_BE_TOLD}: a copy moves 12.6 M elements, as many as q_a_proj has"
            if undecided
            else "the longest copy that may be of a weight takes 15.0 µs"
        )
