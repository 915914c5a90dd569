"""Calls of several ranks on one clock: against the true clock that the built ranks were laid out on."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.decode_ranks import ALL_REDUCE, in_lockstep
from tests.stages import stepped

from stepscope.pipeline.attribute import attribute
from stepscope.pipeline.ranks import RankCalls, Skew, Together, align
from stepscope.pipeline.steps import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.kineto import Kineto

CALLS = 12


def kept(trace: Kineto, number: int) -> RankCalls:
    linked, steps = stepped(trace)
    groups = [(group, None) for group in attribute(linked, steps).groups if group.kernel_class == "collective"]
    return RankCalls.of(number, linked, steps, groups=groups, step_us={Phase.DECODE: 1000.0}, gpu=None)


def aligned(traces: Sequence[Kineto]) -> tuple[list[Together], list[RankCalls]]:
    return align([kept(trace, number) for number, trace in enumerate(traces)])


def irregular(steps: int, ranks: int, seed: int = 1) -> list[list[list[float]]]:
    """Return work before each collective that differs from call to call, in whole µs."""
    work = np.random.default_rng(seed).integers(50, 250, (steps, ranks, CALLS))
    return [[[float(us) for us in rank] for rank in step] for step in work]


def lateness(steps: list[list[list[float]]]) -> np.ndarray:
    """Return how much later than the first each rank comes, shape [ranks, calls]: all start together at each call."""
    work = np.concatenate([np.array(step) for step in steps], axis=1)
    return np.asarray(work - work.min(axis=0))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("apart", [0.0, 3500.0])
def test_lateness_is_what_the_ranks_compute_longer(ranks: int, apart: float) -> None:
    steps = irregular(5, ranks)
    offsets = [apart * (-1) ** rank * rank for rank in range(ranks)]
    (together,), alone = aligned(in_lockstep(steps, offsets=offsets))
    assert not alone
    assert together.us.shape == (ranks, 5 * CALLS)
    assert together.residual_us == pytest.approx(0, abs=0.002)
    skew = Skew.of(together)
    assert skew.late == pytest.approx(lateness(steps), abs=0.003)
    assert skew.transfer == pytest.approx(7, abs=0.003)


def test_drift_of_a_clock_is_no_lateness() -> None:
    steps = irregular(20, 3)
    (together,), _ = aligned(in_lockstep(steps, offsets=(0, 5000, -800), drifts=(0, 3e-5, -2e-5)))
    assert [clock.drift for clock in together.clocks] == pytest.approx([0, 3e-5, -2e-5], abs=1e-7)
    assert together.residual_us < 0.01
    assert Skew.of(together).late == pytest.approx(lateness(steps), abs=0.01)


@pytest.mark.parametrize(("first", "second"), [(0, 2), (2, 0), (1, 0), (0, 3)])
def test_profilers_may_begin_some_steps_apart(first: int, second: int) -> None:
    steps = irregular(9, 2)
    traces = in_lockstep(steps)
    starts = [trace.events[0]["ts"] for trace in traces]
    begins = sorted(event["ts"] for event in traces[0].events if event["name"].startswith("step["))
    for trace, skipped in zip(traces, (first, second), strict=True):
        trace.events = [event for event in trace.events if event["ts"] >= begins[skipped]]
    assert starts[0] == starts[1]
    (together,), _ = aligned(traces)
    assert together.clocks[1].steps_ahead == first - second
    kept_steps = steps[max(first, second) :]
    assert Skew.of(together).late == pytest.approx(lateness(kept_steps), abs=0.003)


def test_ranks_of_other_groups_do_not_end_together() -> None:
    """Two replicas of two ranks each, whose kernels have the same names: what ends together is one group."""
    one, other = in_lockstep(irregular(6, 2, seed=1)), in_lockstep(irregular(6, 2, seed=2))
    groups, alone = aligned([one[0], other[0], one[1], other[1]])
    assert [[each.trace for each in group.ranks] for group in groups] == [[0, 2], [1, 3]]
    assert not alone


def test_a_rank_of_another_run_stands_alone() -> None:
    one, other = in_lockstep(irregular(6, 2, seed=1)), in_lockstep(irregular(6, 2, seed=2))
    groups, alone = aligned([*one, other[0]])
    assert [[each.trace for each in group.ranks] for group in groups] == [[0, 1]]
    assert [each.trace for each in alone] == [2]


def test_a_call_that_ends_elsewhere_is_left_out() -> None:
    steps = irregular(6, 2)
    traces = in_lockstep(steps)
    odd = [event for event in traces[1].events if event["name"] == ALL_REDUCE][20]
    odd["dur"] += 30
    (together,), _ = aligned(traces)
    assert together.us.shape == (2, 6 * CALLS - 1)


def test_process_groups_tell_calls_of_the_same_kernel_apart() -> None:
    """Each rank exchanges with all, and in turn with its pair: recorded groups say which call is which."""
    ends = np.arange(1, 41) * 200.0
    built = []
    for rank in range(4):
        trace = in_lockstep([[[1.0]]])[0]
        trace.events = []
        pair = [0, 1] if rank < 2 else [2, 3]
        for step in range(4):
            begin, last = ends[10 * step] - 150, ends[10 * step + 9]
            correlation = trace.launch(begin, 5)
            trace.annotation("step[DECODE bs=1]", begin - 2, last - begin)
            for call in range(10):
                members = pair if call % 2 else [0, 1, 2, 3]
                end = ends[10 * step + call] + (40.0 * step if call % 2 and rank >= 2 else 0.0)
                told: dict[str, object] = {"Process Group Name": str(len(members)), "Process Group Ranks": str(members)}
                told |= {"Group size": len(members), "dtype": "BFloat16", "In msg nelems": 6144}
                args = {"device": 0, "stream": 7, "correlation": correlation, **told}
                trace.span("kernel", ALL_REDUCE, end - 10 - rank, 10 + rank, pid=0, tid=7, args=args)
        built.append(trace)
    (together,), alone = aligned(built)
    assert not alone
    parts = np.isfinite(together.us).sum(axis=0)
    assert sorted(parts.tolist()) == [2] * 40 + [4] * 20
    late = Skew.of(together).late
    for call in range(late.shape[1]):
        of = np.flatnonzero(np.isfinite(late[:, call]))
        assert late[of, call] == pytest.approx(of.max() - of)
        assert all(b == a + 1 for a, b in pairwise(of.tolist()))


def test_ranks_without_collectives_stand_alone() -> None:
    one, other = in_lockstep(irregular(3, 2))
    other.events = [event for event in other.events if event["name"] != ALL_REDUCE]
    groups, alone = aligned([one, other])
    assert not groups
    assert sorted(each.trace for each in alone) == [0, 1]


def test_collectives_outside_the_steps_are_not_compared() -> None:
    steps = irregular(4, 2)
    traces = in_lockstep(steps)
    traces[1].kernel(ALL_REDUCE, 10, 800)  # a barrier before the first step, without a launch
    (together,), _ = aligned(traces)
    assert together.us.shape == (2, 4 * CALLS)
    assert Skew.of(together).late == pytest.approx(lateness(steps), abs=0.003)
