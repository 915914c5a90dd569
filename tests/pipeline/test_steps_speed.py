"""Traces of many steps, or of many kernels that tell none, take time in proportion."""

from __future__ import annotations

import time

import numpy as np
import pytest
from tests.kineto import Kineto
from tests.stages import stepped

from stepscope.pipeline.health import check_health
from stepscope.pipeline.steps import Phase
from stepscope.pipeline.steps.repeats import find_repeats, holds_repeat
from stepscope.pipeline.whatif import Timeline

STEPS = 40_000


def test_many_steps_take_no_time_that_grows_with_their_square() -> None:
    trace = Kineto()
    for number in range(STEPS):
        trace.annotation("step[DECODE bs=1]", 10 + 20.0 * number, 15)
        trace.call("k", at=11 + 20.0 * number, duration=5)
    linked, steps = stepped(trace)
    begin = time.perf_counter()
    found = {warning.code for warning in check_health(linked, steps, layers=None)}
    replayed = Timeline(linked, steps).replay(steps.steady_phases()[Phase.DECODE])
    assert time.perf_counter() - begin < 3.0  # comparing each step to each takes 10 times that
    assert found == {"no-shapes", "no-stacks", "steps-left-out"}
    assert set(replayed.duration_us.tolist()) == {20.0}


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_million_kernels_of_as_many_names_take_seconds(times: int) -> None:
    names = np.tile(np.arange(999_999 // times), times)
    begin = time.perf_counter()
    repeats = find_repeats(names, names, np.zeros_like(names))
    assert time.perf_counter() - begin < 4.0
    assert holds_repeat(names) is (times == 3)
    assert (repeats is not None) is (times == 3)
