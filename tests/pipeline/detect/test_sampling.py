"""`slow-sampling`: what it counts, and from which batch on."""

from __future__ import annotations

import pytest
from tests.answers import finding, rules
from tests.decode_steps import Work, eager, graphed
from tests.examples.slow_sampling import HEAD, LAYER, batch, decoding, sorted_logits
from tests.stages import diagnosed

from stepscope.document import Confidence

SAMPLER_US = 12 + 4 * 40 + 30 + 6 + 20 + 8
"""The nine kernels that `sorted_logits` builds."""


def test_the_whole_sampler_becomes_one_kernel_as_long_as_its_longest() -> None:
    found = finding(diagnosed(decoding(sorted_logits(16)), gpu="h200"), "slow-sampling")
    assert found.time_us_per_step == pytest.approx(SAMPLER_US)
    assert found.evidence.calls_per_step == 9
    assert found.confidence is Confidence.HIGH
    assert found.evidence.input_shape == [16, 154_880]
    assert found.evidence.bytes_per_step == 16 * 154_880 * 4
    assert found.evidence.op == "aten::sort"
    assert found.evidence.groups[0].time_us_per_step == pytest.approx(160)
    assert found.what_if is not None
    today = 20 * (3 + 20 + 20 + 3) + 60 + SAMPLER_US
    assert found.what_if.gain_fraction * today == pytest.approx(SAMPLER_US - 40, rel=0.05)


def test_the_least_time_is_one_reading_of_the_logits() -> None:
    found = finding(diagnosed(decoding(sorted_logits(16)), gpu="h200"), "slow-sampling")
    # 9,912,320 bytes at the 4,300 GB/s measured on an H200
    assert found.evidence.floor_us_per_step == pytest.approx(9_912_320 / 4_300e3, rel=0.01)


def test_without_shapes_the_batch_and_this_ranks_part_of_the_vocabulary_are_taken() -> None:
    found = finding(
        diagnosed(graphed([[*LAYER * 20, HEAD, *sorted_logits(None)]] * 3, annotation=batch(64))), "slow-sampling"
    )
    assert found.confidence is Confidence.MEDIUM
    assert found.evidence.input_shape == [64, 154_880 // 8]


def test_after_the_logits_are_gathered_they_are_whole() -> None:
    gather = Work("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20)
    steps = [[*LAYER * 20, HEAD, gather, *sorted_logits(None)]] * 3
    found = finding(diagnosed(graphed(steps, annotation=batch(64))), "slow-sampling")
    assert found.evidence.input_shape == [64, 154_880]
    assert found.time_us_per_step == pytest.approx(SAMPLER_US)  # the collective is none of it


@pytest.mark.parametrize(("requests", "fires"), [(7, False), (8, True)])
def test_a_sort_pays_for_up_to_seven_requests(requests: int, *, fires: bool) -> None:
    assert ("slow-sampling" in rules(diagnosed(decoding(sorted_logits(None), requests)))) is fires


def test_where_nothing_tells_the_batch_the_question_stays_open() -> None:
    trace = eager([[*LAYER * 20, HEAD, *sorted_logits(None)]] * 3, annotation="ProfilerStep#1")
    diagnosis = diagnosed(trace)
    assert "slow-sampling" not in rules(diagnosis)
    (asked,) = (each for each in diagnosis.could_not_check if each.rule == "slow-sampling")
    assert "how many" in asked.missing
