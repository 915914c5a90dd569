"""`lm-head-all-tokens`: how much of the head is needed, by shapes and by time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.answers import finding, rules
from tests.decode_steps import Work
from tests.examples.gemm_below_roofline import prompt_at_a_fifth_of_the_operations
from tests.examples.lm_head_all_tokens import (
    ARGMAX_OF_ONE,
    TOKENS,
    VOCABULARY,
    WIDTH,
    all_tokens_then_a_slice,
    head,
    head_that_takes_as_long_as_all_tokens_do,
    step,
    without_shapes,
)
from tests.kernel_names import ADD, ATTENTION, GEMM
from tests.stages import diagnosed

from stepscope import diagnose
from stepscope.document import Confidence, Severity

if TYPE_CHECKING:
    from pathlib import Path

WEIGHT_BYTES = VOCABULARY * WIDTH * 2
TFLOPS, GB_PER_S = 790.0, 4_300.0
"""An H200's, as measured: hardware/gpus/h200.toml."""


def test_what_is_left_is_one_reading_of_the_weight() -> None:
    diagnosis = diagnosed(all_tokens_then_a_slice())
    found = finding(diagnosis, "lm-head-all-tokens")
    assert found.confidence is Confidence.HIGH
    assert found.severity is Severity.MAJOR
    assert found.evidence.input_shape == [TOKENS, WIDTH]
    assert found.evidence.tensor == "weight lm_head [19360, 6144]"
    assert found.evidence.bytes_per_call == WEIGHT_BYTES + TOKENS * (WIDTH + VOCABULARY) * 2
    all_us = 2 * TOKENS * WIDTH * VOCABULARY / TFLOPS / 1e6
    one_us = WEIGHT_BYTES / GB_PER_S / 1e3
    assert found.what_if is not None
    gain_us = diagnosis.steps[0].duration_us.median - found.what_if.step_us.expected
    assert gain_us == pytest.approx(1250 * (1 - one_us / all_us), rel=0.01)


def test_a_head_that_is_known_by_its_time_alone_is_of_low_confidence() -> None:
    found = finding(diagnosed(head_that_takes_as_long_as_all_tokens_do()), "lm-head-all-tokens")
    assert found.confidence is Confidence.LOW
    assert any("No shapes were recorded" in note for note in found.notes)


@pytest.mark.parametrize(("us", "fires"), [(900, False), (1000, True), (2300, True), (2500, False)])
def test_by_time_it_must_take_what_all_tokens_take(us: float, *, fires: bool) -> None:
    # 1,233 µs at the measured rate of 790 TFLOP/s; from 0.8 to 2 times that: 987 to 2,467 µs
    assert ("lm-head-all-tokens" in rules(diagnosed(without_shapes([head(TOKENS, us), ARGMAX_OF_ONE])))) is fires


@pytest.mark.parametrize(("us", "fires"), [(1140, False), (1160, True)])
def test_by_time_it_must_take_longer_than_what_the_same_kernel_does_in_the_layers(us: float, *, fires: bool) -> None:
    mlp = Work(GEMM, 1050, "aten::mm")
    kernels = [mlp, Work(ATTENTION, 300), Work(ADD, 20)] * 10  # 1.1 times 1,050: 1,155 µs
    found = diagnosed(without_shapes([*kernels, head(TOKENS, us), ARGMAX_OF_ONE]))
    assert ("lm-head-all-tokens" in rules(found)) is fires


@pytest.mark.parametrize(("rows", "fires"), [(16, False), (17, True)])
def test_up_to_sixteen_rows_a_request_may_be_drafted_tokens(rows: int, *, fires: bool) -> None:
    trace = step(head(rows * 16, 1250), ARGMAX_OF_ONE, annotation=f"step[EXTEND bs=16 toks={TOKENS}]")
    assert ("lm-head-all-tokens" in rules(diagnosed(trace))) is fires


def test_a_last_multiplication_of_another_shape_is_no_head_however_long_it_takes() -> None:
    """1,024 tokens through [6144, 6144] in 490 µs, as long as GLM-5's head of 19,360 on a rank might take."""
    assert rules(diagnosed(prompt_at_a_fifth_of_the_operations())) == ["gemm-below-roofline"]


def test_without_a_model_it_is_the_one_with_most_columns_that_runs_once(tmp_path: Path) -> None:
    found = finding(diagnose([all_tokens_then_a_slice().save(tmp_path / "t.json")]), "lm-head-all-tokens")
    assert found.confidence is Confidence.MEDIUM
    assert (found.evidence.calls_per_step, found.evidence.input_shape) == (1, [TOKENS, WIDTH])
    assert any("No model is known" in note for note in found.notes)


@pytest.mark.parametrize(("rows", "fires"), [(1, True), (8, True), (300, False)])
def test_without_a_batch_size_the_samplers_rows_are_needed(rows: int, *, fires: bool) -> None:
    sampler = Work(ARGMAX_OF_ONE.kernel, 9, "aten::argmax", [[rows, VOCABULARY], []], ["c10::BFloat16", ""])
    diagnosis = diagnosed(step(head(TOKENS, 1250), sampler, annotation="ProfilerStep#1"))
    assert ("lm-head-all-tokens" in rules(diagnosis)) == fires
    if fires:
        assert f"of which {rows} " in finding(diagnosis, "lm-head-all-tokens").title


@pytest.mark.parametrize(
    "tail",
    [
        [head(TOKENS, 1250)] * 2,  # a layer has as many columns
        [head(1, 60)],  # the last token only
        [Work(GEMM, 1250, "aten::mm", [[TOKENS, WIDTH], [WIDTH, 12_000]], ["c10::BFloat16"] * 2)],  # an MLP's width
    ],
    ids=["twice", "last", "narrow"],
)
def test_without_a_model_nothing_else_is_taken_for_it(tail: list[Work], tmp_path: Path) -> None:
    path = step(*tail, ARGMAX_OF_ONE).save(tmp_path / "t.json")
    assert "lm-head-all-tokens" not in rules(diagnose([path]))
