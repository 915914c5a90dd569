"""Tokens, requests and warm-up: what annotations and shapes tell of a step."""

from __future__ import annotations

import pytest
from tests.kineto import Kineto
from tests.stages import diagnosed, stepped


@pytest.mark.parametrize(
    ("annotation", "phase", "batch", "tokens"),
    [
        ("step[DECODE bs=32]", "decode", 32, 32),
        ("step[EXTEND bs=15 toks=15360]", "prefill", 15, 15360),
        ("step[MIXED bs=4 toks=2048]", "mixed", 4, 2048),
        ("step[EXTEND bs=15]", "prefill", 15, None),
        ("step[TARGET_VERIFY bs=8]", "unknown", 8, None),  # each request verifies several tokens
        ("execute_context_2(14721)_generation_0(0)", "prefill", 2, 14721),
        ("execute_context_1(512)_generation_7(7)", "mixed", 8, 519),
        ("execute_context_1(888_788544)_generation_0(0)", "prefill", 1, 888),
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32768sqsq32sqsk32768)", "decode", 32, 32),
        ("execute_15360_context_15(sq15360sk15360sqsq15728640sqsk15728640)_generation_0(sq0sk0)", "prefill", 15, 15360),
        ("execute_context_1(99999999999)_generation_0(0)", "prefill", 1, None),
        ("execute_new_3_cached_0", "prefill", 3, None),
        ("execute_new_1_cached_7", "unknown", 8, None),
        ("execute_new_0_cached_7", "unknown", 7, None),
    ],
)
def test_what_annotations_tell(annotation: str, phase: str, batch: int, tokens: int | None) -> None:
    trace = Kineto()
    trace.annotation(annotation, 10, 100)
    trace.call("k", at=20, duration=5)
    (step,) = stepped(trace)[1].steps
    assert (step.phase, step.batch_size, step.tokens) == (phase, batch, tokens)
    (row,) = diagnosed(trace).steps
    assert (row.batch_size, row.tokens) == (batch, tokens)


def test_no_request_is_no_step() -> None:
    trace = Kineto()
    trace.annotation("execute_new_0_cached_0", 10, 100)
    trace.call("k", at=20, duration=5)
    assert not stepped(trace)[1].annotated


def looking_up(*tables: tuple[list[int], list[int]], annotation: str = "ProfilerStep#3") -> Kineto:
    """A step with an embedding for each pair of the shapes of its table and its ids."""
    trace = Kineto()
    trace.annotation(annotation, 1, 500)
    for number, (table, ids) in enumerate(tables):
        trace.call("gather", at=20 + number * 20, duration=5, op="aten::embedding", dims=[table, ids, [], [], []])
    trace.call("k", at=200, duration=5, op="aten::mm", dims=[[4, 4], [4, 4]])
    return trace


@pytest.mark.parametrize(
    ("tables", "batch", "tokens"),
    [
        ([([32000, 64], [17])], None, 17),
        ([([32000, 64], [4, 9])], 4, 36),
        ([([512, 64], [1, 9]), ([30522, 64], [2, 9]), ([2, 64], [2, 9])], 2, 18),  # positions, words, kinds
        ([([32000, 64], [17]), ([32000, 64], [5])], None, None),  # two micro-batches, or a draft
        ([([32000, 64], [])], None, None),
        ([], None, None),
    ],
)
def test_what_the_embeddings_shapes_tell(
    tables: list[tuple[list[int], list[int]]], batch: int | None, tokens: int | None
) -> None:
    (step,) = stepped(looking_up(*tables))[1].steps
    assert (step.phase, step.batch_size, step.tokens) == ("unknown", batch, tokens)


def test_an_annotation_goes_before_the_shapes() -> None:
    (step,) = stepped(looking_up(([32000, 64], [32]), annotation="step[DECODE bs=20]"))[1].steps
    assert (step.batch_size, step.tokens) == (20, 20)  # the ids are padded to a graph's size
    (step,) = stepped(looking_up(([32000, 64], [32]), annotation="step[TARGET_VERIFY bs=8]"))[1].steps
    assert (step.batch_size, step.tokens) == (8, 32)


def test_nonsense_shapes_tell_nothing() -> None:
    (step,) = stepped(looking_up(([32000, 64], [-3])))[1].steps
    assert step.tokens is None
    (step,) = stepped(looking_up(([32000, 64], [1 << 40, 1 << 40])))[1].steps
    assert step.tokens is None


def stepping(
    *, capture_in: int | None = None, warm_up: str | None = None, annotation: str = "ProfilerStep#{}"
) -> Kineto:
    trace = Kineto()
    for number in range(5):
        at = number * 1000.0
        trace.annotation(annotation.format(number), at, 900)
        trace.call("k", at=at + 100, duration=50)
        if number == capture_in:
            trace.launch(at + 300, name="cudaStreamEndCapture")
    if warm_up is not None:
        trace.annotation(warm_up, -10, 1500)  # around the first two
    return trace


@pytest.mark.parametrize("name", ["warmup", "warm-up", "Warm_Up 3", "[param|model|0|warmup|forward]"])
def test_steps_within_a_warm_up_are_warm_up(name: str) -> None:
    _, steps = stepped(stepping(warm_up=name))
    assert [step.phase for step in steps.steps] == ["warm-up"] * 2 + ["unknown"] * 3


@pytest.mark.parametrize("annotation", ["ProfilerStep#{}", "step[DECODE bs=1]"])
def test_a_step_that_captures_a_graph_is_warm_up(annotation: str) -> None:
    _, steps = stepped(stepping(capture_in=1, annotation=annotation))
    assert [step.phase == "warm-up" for step in steps.steps] == [False, True, False, False, False]
    assert steps.is_capture


def test_warm_up_has_a_row_of_its_own_and_no_finding() -> None:
    diagnosis = diagnosed(stepping(warm_up="warmup"))
    assert [(row.phase, row.count, row.steady) for row in diagnosis.steps] == [("warm-up", 2, 2), ("unknown", 3, 3)]
    assert "warm-up" not in {finding.phase for finding in diagnosis.findings}


def test_steps_that_all_capture_are_the_recording_of_a_capture() -> None:
    trace = Kineto()
    trace.annotation("ProfilerStep#134", 0, 5000)
    trace.call("k", at=100, duration=50)
    trace.launch(300, name="cudaStreamEndCapture")
    _, steps = stepped(trace)
    assert steps.steps == ()
