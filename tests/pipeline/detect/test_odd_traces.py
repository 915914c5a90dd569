"""Traces that no run was meant to leave behind: the diagnosis says what it can, and stands."""

from __future__ import annotations

import pytest
from tests.answers import finding
from tests.decode_steps import STEP, Work, copied, eager
from tests.examples.gemm_below_roofline import H200, REST, experts, matmul, on_h200
from tests.examples.slow_sampling import HEAD, LAYER, batch, sorted_logits
from tests.kernel_names import GEMM, TO_LONG
from tests.kineto import Kineto
from tests.plain_op_names import MASK
from tests.published_collectives import ALL_REDUCE, token_of_slow_all_reduces
from tests.stages import diagnosed


def test_groups_are_the_part_that_the_finding_is_about_the_longest_first() -> None:
    masked = Work(MASK, 6, "aten::masked_fill_", [[16, 154_880], []], ["float", "Scalar"])
    trace = eager([[masked, *LAYER * 20, HEAD, *sorted_logits(16)]] * 3, annotation=batch(16))
    groups = finding(diagnosed(trace, gpu="h200"), "slow-sampling").evidence.groups
    # softmax, sorts, running sum, mask, scatter, argmax; the mask before the layers is none of the sampler
    assert [group.time_us_per_step for group in groups] == pytest.approx([160, 30, 20, 12, 8, 6])
    assert [group.calls_per_step for group in groups] == [4, 1, 1, 1, 1, 1]


def test_groups_are_ordered_by_what_they_take_in_a_step_not_by_an_odd_one() -> None:
    odd = [work._replace(us=100) if work.kernel == MASK else work for work in sorted_logits(16)]
    steps = [[*LAYER * 20, HEAD, *(odd if index == 3 else sorted_logits(16))] for index in range(6)]
    groups = finding(diagnosed(eager(steps, annotation=batch(16)), gpu="h200"), "slow-sampling").evidence.groups
    assert [group.time_us_per_step for group in groups] == pytest.approx([160, 30, 20, 12, 8, 6])


def test_steps_that_begin_at_the_same_time_have_no_shares() -> None:
    trace = Kineto()
    for step in (0, 1):
        begin = 10 + 20 * step
        trace.annotation(STEP, begin, 15)
        trace.kernel("unheard_of", 100, 10, correlation=trace.launch(begin + 2), stream=7 + step)
    diagnosis = diagnosed(trace, model=None, tp=None)
    (summary,) = diagnosis.steps
    assert summary.duration_us.median == 0
    assert {row.share_of_step for row in diagnosis.breakdown} == {0}
    assert {row.share_of_step for row in diagnosis.ruled_out} == {None}


def test_a_collective_of_the_first_step_alone_is_no_slow_one() -> None:
    (trace,) = token_of_slow_all_reduces()
    _, second, *_ = (event["ts"] for event in trace.events if event["name"] == STEP)
    for event in trace.events:
        if event["name"] == ALL_REDUCE and event["ts"] < second:
            event["name"] = ALL_REDUCE.replace("RING_LL", "TREE_LL")
    assert finding(diagnosed(trace), "slow-collective").evidence.kernel == ALL_REDUCE


def test_an_expert_without_tokens_is_no_batch() -> None:
    cast = copied(TO_LONG, 40, (4096, 3000), "int", "long int")
    nothing = Work(GEMM, 1, "aten::mm", [[0, 2048], [2048, 512]], ["c10::BFloat16", "c10::BFloat16"])
    diagnosis = diagnosed(eager([[cast, nothing] * 20] * 3))
    assert [row.kernel_class for row in diagnosis.breakdown] == ["cast", "gemm"]


def test_slow_multiplications_are_listed_by_what_they_take_not_by_what_they_waste() -> None:
    # at the memory's rate one would take 59 µs, the others 6 each: 141 of 200 µs are too much, and 162 of 180
    layer = [*[matmul(60)] * 3, matmul(200, out=20_480)]
    trace = on_h200(eager([[*layer, *REST] * 10] * 3))
    evidence = finding(diagnosed(trace), "gemm-below-roofline").evidence
    assert [group.time_us_per_step for group in evidence.groups] == pytest.approx([2000, 1800])
    assert evidence.us_per_call == pytest.approx(200)


def test_experts_that_few_steps_run_take_no_time_in_the_median_step() -> None:
    steps = [[experts(30), experts(30, tokens=2 if index == 2 else 1), *REST] for index in range(4)]
    (told,) = (row for row in diagnosed(on_h200(eager(steps))).ruled_out if row.hypothesis == "MoE GEMM")
    assert told.time_us_per_step == pytest.approx(60)
    assert "its work needs at least" in told.reason


@pytest.mark.parametrize("odd", [[[-1]], {}, "9", None, 1 << 70])
def test_a_device_that_tells_no_number_is_as_one_that_tells_nothing(odd: object) -> None:
    trace = eager([[matmul(40), *REST] * 10] * 3)
    trace.header["deviceProperties"] = [{**H200, "computeMajor": odd, "numSms": odd}]
    assert finding(diagnosed(trace), "gemm-below-roofline").evidence.multiprocessors is None
