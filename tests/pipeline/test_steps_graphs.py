"""Steps that graph launches tell, where no annotation does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.kineto import Kineto
from tests.stages import diagnosed, stepped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.pipeline.steps import Steps

LAYERS = [(f"layer_{part}", 10.0, (1, 1, 1)) for _ in range(12) for part in ("norm", "qkv", "attention", "mlp")]
FULL = [("embed", 5.0, (1, 1, 1)), *LAYERS, ("head", 5.0, (1, 1, 1))]
FULL_OF_TWO = [(name if name == "embed" else f"{name}_of_2", us, grid) for name, us, grid in FULL]


def piece(kind: str, size: int) -> list[tuple[str, float, tuple[int, int, int]]]:
    return [(f"{kind}_{number}", 10.0, (1, 1, 1)) for number in range(size)]


FIRST, MIDDLE, LAST = piece("first", 4), piece("middle", 23), piece("last", 12)


def replaying(
    graphs: Sequence[Sequence[tuple[str, float, tuple[int, int, int]]]],
    *,
    pause_before: Sequence[int] = (),
    eager: Sequence[str] = ("sample",),
) -> Kineto:
    """Replay graphs one after another, with eager kernels after each, and a longer pause before some."""
    trace = Kineto()
    at = 100.0
    for number, graph in enumerate(graphs):
        at += 400 if number in pause_before else 0
        end = trace.replay(graph, at=at, host=20)
        for kernel in eager:
            at += 30
            trace.call(kernel, at=at, duration=3)
        at = max(end, at) + 50
    return trace


def starts_us(steps: Steps) -> list[float]:
    return [step.host_start_ns / 1e3 for step in steps.steps]


@pytest.mark.parametrize("replays", [2, 3, 7])
def test_each_replay_of_the_graph_begins_a_step(replays: int) -> None:
    linked, steps = stepped(replaying([FULL] * replays))
    assert (steps.found_by, len(steps.steps)) == ("graph launches", replays)
    assert {step.phase for step in steps.steps} == {"unknown"}
    assert [step.batch_size for step in steps.steps] == [None] * replays
    # a step is its replay, and the sampling launched until the next one: 12 layers of 4, embed, head, sample
    assert steps.kernels_per_step().tolist() == [51] * replays
    named = dict(zip(linked.kernels["name"].to_list(), steps.step_of_kernel.tolist(), strict=True))
    assert named["sample"] == replays - 1  # the last of that name


def test_graphs_of_a_few_kernels_without_layers_are_steps_too() -> None:
    _, steps = stepped(replaying([piece("k", 3)] * 4, eager=()))
    assert steps.kernels_per_step().tolist() == [3, 3, 3, 3]


def test_one_replay_tells_no_steps() -> None:
    _, steps = stepped(replaying([FULL]))
    assert (steps.found_by, len(steps.steps)) == ("recording", 1)
    assert set(steps.step_of_kernel.tolist()) == {0}


def test_work_before_the_first_replay_is_outside() -> None:
    trace = replaying([FULL] * 3)
    trace.call("before", at=0, duration=5)
    linked, steps = stepped(trace)
    outside = linked.kernels["name"].cast(str).to_numpy()[steps.step_of_kernel < 0]
    assert outside.tolist() == ["before"]


def test_the_pieces_of_a_pass_are_one_step() -> None:
    """vLLM: 4, 15 × 23 and 12 kernels, attention between them."""
    passes = 4
    graphs = [FIRST, *[MIDDLE] * 15, LAST]
    pauses = [number * len(graphs) for number in range(1, passes)]
    _, steps = stepped(replaying(graphs * passes, pause_before=pauses, eager=["attention"]))
    assert (steps.found_by, len(steps.steps)) == ("graph launches", passes)
    assert steps.kernels_per_step().tolist() == [4 + 15 * 23 + 12 + 17] * passes


def test_pieces_recorded_from_the_middle_of_a_pass_on() -> None:
    """A step begins after the longest pause, not with whatever is recorded first."""
    graphs = [*[MIDDLE] * 5, LAST] + [FIRST, *[MIDDLE] * 15, LAST] * 3
    _, steps = stepped(replaying(graphs, pause_before=[6, 23, 40], eager=["attention"]))
    assert steps.kernels_per_step().tolist() == [4 + 15 * 23 + 12 + 17] * 3
    assert (steps.step_of_kernel < 0).sum() == 5 * 23 + 12 + 6


@pytest.mark.parametrize("graphs", [[FIRST, *[MIDDLE] * 15, LAST], [FIRST, *[MIDDLE] * 15], [*[MIDDLE] * 9, LAST]])
def test_the_pieces_of_a_single_pass_are_no_steps(graphs: list[list[tuple[str, float, tuple[int, int, int]]]]) -> None:
    _, steps = stepped(replaying(graphs, eager=["attention"]))
    assert (steps.found_by, len(steps.steps)) == ("recording", 1)


def test_a_draft_and_its_target_are_one_step() -> None:
    draft = piece("draft", 9)
    _, steps = stepped(replaying([draft, draft, FULL] * 4, pause_before=[3, 6, 9], eager=()))
    assert steps.kernels_per_step().tolist() == [9 + 9 + 50] * 4


def test_graphs_of_several_batch_sizes_are_steps_where_they_hold_the_layers() -> None:
    sampler = piece("sampler", 3)
    order = [FULL, sampler, FULL_OF_TWO, sampler, FULL_OF_TWO, sampler, FULL, sampler, FULL, sampler]
    _, steps = stepped(replaying(order, eager=()))
    assert steps.kernels_per_step().tolist() == [53] * 5


def test_a_small_graph_beside_eager_work_tells_no_steps() -> None:
    _, steps = stepped(replaying([piece("sampler", 3)] * 4, eager=[f"eager_{number}" for number in range(8)]))
    assert steps.found_by == "recording"


def test_annotations_go_before_graphs() -> None:
    trace = replaying([FULL] * 4)
    trace.annotation("step[DECODE bs=2]", 90, 5000)
    _, steps = stepped(trace)
    assert (steps.annotated, [step.batch_size for step in steps.steps]) == (True, [2])


def test_replays_after_a_capture_are_steps_and_the_passes_before_are_outside() -> None:
    trace = Kineto()
    for number in range(3):
        trace.call(f"eager_{number}", at=number * 20, duration=5)
    trace.launch(70, name="cudaStreamEndCapture")
    for number in range(4):
        trace.replay(FULL, at=100 + number * 1000)
    _, steps = stepped(trace)
    assert (steps.is_capture, steps.found_by) == (True, "graph launches")
    assert steps.kernels_per_step().tolist() == [50] * 4
    assert (steps.step_of_kernel < 0).sum() == 3


def test_a_graphs_step_is_reported_with_how_it_was_found() -> None:
    diagnosis = diagnosed(replaying([FULL] * 5))
    (row,) = diagnosis.steps
    assert (row.phase, row.count, row.steady, row.batch_size, row.tokens) == ("unknown", 5, 4, None, None)
    (warning,) = (w for w in diagnosis.traces[0].warnings if w.code == "no-step-annotations")
    assert "steps are taken from graph launches" in warning.message
    # 50 kernels back to back: 48 of 10 µs and 2 of 5
    assert row.gpu_busy_us == pytest.approx(48 * 10 + 2 * 5 + 3)


def test_graphs_of_many_batch_sizes_are_steps() -> None:
    """In no order, so that only what they hold tells."""
    sizes = [[(f"{name}_of_{size}", us, grid) for name, us, grid in FULL] for size in range(100)]
    _, steps = stepped(replaying([sizes[number * number % 101 % 100] for number in range(150)] + sizes, eager=()))
    assert (steps.found_by, len(steps.steps)) == ("graph launches", 250)


def test_graphs_that_hardly_recur_tell_no_steps() -> None:
    others = [[(f"{name}_of_{size}", us, grid) for name, us, grid in FULL] for size in range(300)]
    _, steps = stepped(replaying([FULL, *others, FULL], eager=()))
    assert steps.found_by == "recording"
