"""Steps that the repeating sequence of kernels tells, and repeats that are none."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kineto import Kineto
from tests.stages import diagnosed, stepped

from stepscope.pipeline.steps.repeats import find_repeats, holds_repeat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LAYER = [f"layer_{number}" for number in range(6)]
HEAD = ["embed", "positions"]
TAIL = ["final_norm", "lm_head", "argmax"]
STEP = [*HEAD, *LAYER * 78, *TAIL]
OP_US = 7.0


def launched(kernels: Sequence[str], *, pause_before: Sequence[int] = (), host: bool = True) -> Kineto:
    """Launch kernels one by one, with a pause of the host before some."""
    trace = Kineto()
    at = 10.0
    for number, kernel in enumerate(kernels):
        at += 200 if number in pause_before else OP_US
        if host:
            trace.call(kernel, at=at, duration=2)
        else:
            trace.kernel(kernel, at, 2)
    return trace


def numbers(kernels: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    known = {name: number for number, name in enumerate(sorted(set(kernels)))}
    return np.array([known[name] for name in kernels], dtype=np.int64)


def found(kernels: Sequence[str], pause_before: Sequence[int] = ()) -> tuple[list[int], int] | None:
    """Return where the steps in a sequence of names begin, and where they end."""
    pause = np.full(len(kernels), 7, dtype=np.int64)
    pause[list(pause_before)] = 200
    repeats = find_repeats(numbers(kernels), numbers(kernels), pause)
    return None if repeats is None else (repeats[0].tolist(), repeats[1])


@pytest.mark.parametrize("host", [True, False], ids=["launches", "GPU rows only"])
@pytest.mark.parametrize("steps_recorded", [3, 5])
def test_seventy_eight_layers_between_head_and_tail_are_one_step(steps_recorded: int, *, host: bool) -> None:
    linked, steps = stepped(launched(STEP * steps_recorded, host=host))
    assert (steps.found_by, len(steps.steps)) == ("kernel sequence", steps_recorded)
    assert steps.kernels_per_step().tolist() == [2 + 78 * 6 + 3] * steps_recorded
    named = linked.kernels["name"].to_list()
    first = [named[int(np.flatnonzero(steps.step_of_kernel == step)[0])] for step in range(steps_recorded)]
    assert first == ["embed"] * steps_recorded
    assert {step.phase for step in steps.steps} == {"unknown"}


@pytest.mark.parametrize(
    "kernels",
    [
        LAYER * 78,
        LAYER * 78 * 5,
        STEP,
        STEP * 2,
        [*HEAD, *LAYER * 78],
        [*LAYER * 78, *TAIL],
        [*STEP, *HEAD, *LAYER * 20],
        [*LAYER * 20, *TAIL, *STEP],
        [f"kernel_{number}" for number in range(300)],
        ["same"] * 300,
        ["a", "b"] * 200,
    ],
    ids=[
        "layers of one step",
        "layers of steps that nothing marks",
        "a step",
        "two steps",
        "a step without its tail",
        "a step without its head",
        "a step and the start of another",
        "the end of a step and another",
        "no repeat",
        "one kernel",
        "two kernels",
    ],
)
def test_layers_are_no_steps(kernels: list[str]) -> None:
    """Nor are two steps: what repeats once may be chance."""
    _, steps = stepped(launched(kernels))
    assert (steps.found_by, len(steps.steps)) == ("recording", 1)
    assert set(steps.step_of_kernel.tolist()) == {0}


def test_layers_of_two_kinds_within_steps() -> None:
    """Three dense layers before 75 with experts, as DeepSeek has; and every fourth with another attention."""
    dense = ["norm", "attention", "mlp_up", "mlp_down"]
    experts = ["norm", "attention", "route", "experts_up", "experts_down", "combine"]
    step = [*HEAD, *dense * 3, *experts * 75, *TAIL]
    assert found(step * 4) == ([number * len(step) for number in range(4)], 4 * len(step))
    hybrid = [*HEAD, *([*["norm", "linear", "mlp"] * 3, "norm", "softmax_attention", "mlp"] * 12), *TAIL]
    assert found(hybrid * 3) == ([number * len(hybrid) for number in range(3)], 3 * len(hybrid))
    assert found(hybrid) is None
    assert found(hybrid * 2) is None


def test_a_prefill_before_the_steps_is_outside() -> None:
    prefill = [f"prefill_{name}" for name in STEP]
    steps = [len(prefill) + number * len(STEP) for number in range(4)]
    assert found(prefill + STEP * 4, pause_before=steps) == (steps, len(prefill) + 4 * len(STEP))


def test_a_step_begins_after_the_longest_pause() -> None:
    """Recording begins within a step, and ends within one: the whole steps count."""
    cut = [*LAYER * 30, *TAIL]
    steps = [len(cut) + number * len(STEP) for number in range(4)]
    end = steps[-1] + len(STEP)
    assert found([*cut, *STEP * 4, *HEAD, *LAYER * 20], pause_before=[*steps, end]) == (steps, end)


def test_a_step_that_only_its_tail_marks() -> None:
    step = [*LAYER * 78, "softmax", "argmax", "Memcpy DtoH"]
    steps = [number * len(step) for number in range(3)]
    assert found(step * 3) == (steps, 3 * len(step))
    # something in the first step makes it longer, so that the steps do not tile the recording evenly
    longer = [*step[:100], "tune", *step[100:]]
    after = [0, len(longer), len(longer) + len(step)]
    assert found(longer + step * 2, pause_before=after[1:]) == (after, len(longer) + 2 * len(step))


def test_kernels_that_run_at_times_only() -> None:
    kernels: list[str] = []
    begins = []
    for number in range(8):
        begins.append(len(kernels))
        step = list(STEP)
        if number in {2, 3, 6}:
            step[200:200] = ["memset"]
        kernels += step
    assert found(kernels, pause_before=begins[1:]) == (begins, len(kernels))


def test_what_runs_in_every_other_step_is_no_mark() -> None:
    with_cleaning = [*STEP, "clean"]
    kernels = [*STEP, *with_cleaning] * 4
    begins = [pair * (2 * len(STEP) + 1) + second * len(STEP) for pair in range(4) for second in range(2)]
    assert found(kernels, pause_before=begins[1:]) == (begins, len(kernels))


def test_a_long_iteration_without_layers_is_a_step() -> None:
    """Training: a thousand kernels and more, hardly any of which repeat; no layer is like that."""
    iteration = [f"kernel_{number}" for number in range(1200)]
    assert found(iteration * 3) == ([0, 1200, 2400], 3600)
    assert found(iteration[:900] * 3) is None


def test_a_repeat_within_a_stretch() -> None:
    assert holds_repeat(numbers(STEP))
    assert not holds_repeat(numbers(LAYER))
    # four norms in a layer are no layers: what lies between them differs
    norm = ["square", "mean", "scale"]
    layer = [*norm, "q", "k", "v", "attention", *norm, "o", "add_", "add", "x", *norm, "up", "act", "down", "y", *norm]
    assert not holds_repeat(numbers(layer))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 6), st.integers(6, 30), st.integers(4, 12))
def test_random_steps_are_found_and_their_layers_never(seed: int, count: int, layers: int, size: int) -> None:
    pick = random.Random(seed)  # noqa: S311 -- a seeded test
    layer = [f"k{pick.randrange(size * 2)}" for _ in range(size)] + ["only"]
    step = ["embed", "positions", *layer * layers, "lm_head", "argmax"]
    answer = found(step * count)
    assert answer == ([number * len(step) for number in range(count)], count * len(step))
    assert found(step) is None


def test_how_the_steps_were_found_is_said() -> None:
    diagnosis = diagnosed(launched(STEP * 4))
    (warning,) = (w for w in diagnosis.traces[0].warnings if w.code == "no-step-annotations")
    assert "from the repeating sequence of 473 kernels" in warning.message  # 2 + 78 × 6 + 3
    (row,) = diagnosis.steps
    assert (row.count, row.steady, row.kernels_per_step) == (4, 3, 473)
    whole = diagnosed(launched(LAYER * 40))
    (warning,) = (w for w in whole.traces[0].warnings if w.code == "no-step-annotations")
    assert "the whole recording stands for one" in warning.message


def test_steps_of_two_streams_recorded_on_the_gpu_only() -> None:
    """The busiest stream tells the steps; the others' work goes to the step during which it starts."""

    def rows() -> Iterator[tuple[str, float, int]]:
        at = 0.0
        for _ in range(4):
            at += 300
            for number, kernel in enumerate(STEP):
                yield kernel, at, 7
                if number % 5 == 1:
                    yield "beside", at + 1, 8
                at += 4

    trace = Kineto()
    for kernel, at, stream in rows():
        trace.kernel(kernel, at, 3, stream=stream)
    _, steps = stepped(trace)
    assert steps.found_by == "kernel sequence"
    assert steps.kernels_per_step().tolist() == [473 + 95] * 4  # 1, 6, … 471: 95 of them
