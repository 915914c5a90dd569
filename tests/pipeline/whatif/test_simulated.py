"""The replay beside the truth: random programs on a simulated device, run once with some work and once without it.

The simulated device starts work 1 µs after what it waits for is done, or 2 µs after the launch call that took 4; a call
that waits returns 3 µs after the work. The replay sees only the trace of the first run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kineto import Kineto
from tests.replays import replayed, scaled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Action = tuple[str, int, int, int]
"""What the host does: launch a kernel, wait for a stream, let one stream wait for another, or pause; a stream, a
duration, and which of three kinds the kernel is of, or the other stream."""
STREAMS = 3
AFTER_LAUNCH, AFTER_WORK, AFTER_WAIT = 6.0, 1.0, 3.0


@dataclass
class Run:
    """One run of a program."""

    factors: Mapping[str, float]
    """What the durations of the kinds are multiplied by; 0: not launched on the device at all."""
    trace: Kineto = field(default_factory=Kineto)
    at: float = 0.0
    done: dict[int, float] = field(default_factory=dict)
    """When each stream has done its work."""
    after: dict[int, float] = field(default_factory=dict)
    """What the next work of each stream waits for on others."""
    last_end: float = 0.0

    def of(self, program: Sequence[Action]) -> float:
        """Run the program and return how long its GPU work took from the start of the first, which is always there."""
        self._launch(0, "first", 20)
        for what, stream, us, other in program:
            match what:
                case "launch":
                    self._launch(stream, f"kind{other}", us)
                case "pause":
                    self.at += us
                case "sync":
                    self._sync(stream)
                case _:
                    self._wait_event(stream, other)
        self.trace.annotation("step[DECODE bs=1]", 0, self.at)
        return self.last_end - AFTER_LAUNCH

    def _launch(self, stream: int, name: str, us: float) -> None:
        factor = self.factors.get(name, 1.0)
        correlation = self.trace.launch(self.at)
        if factor:
            waits_for = max(self.done.get(stream, -1e9), self.after.get(stream, -1e9)) + AFTER_WORK
            start = max(self.at + AFTER_LAUNCH, waits_for)
            self.trace.kernel(name, start, us * factor, correlation=correlation, stream=stream + 7)
            self.done[stream] = start + us * factor
            self.last_end = max(self.last_end, self.done[stream])
        self.at += 5

    def _sync(self, stream: int) -> None:
        done = self.done.get(stream, 0.0)
        end = max(self.at + 1, done + AFTER_WAIT)
        self.trace.launch(self.at, end - self.at, name="cudaStreamSynchronize")
        self.at = end + 1

    def _wait_event(self, stream: int, other: int) -> None:
        self.trace.launch(self.at, 1, name="cudaEventRecord")
        self.trace.launch(self.at + 2, 1, name="cudaStreamWaitEvent")
        self.after[stream] = max(self.after.get(stream, -1e9), self.done.get(other, -1e9))
        self.at += 4


def programs(streams: int, *more: str) -> st.SearchStrategy[list[Action]]:
    """Draw what the host does, mostly launches."""
    return st.lists(
        st.tuples(
            st.sampled_from(["launch", "launch", "launch", "launch", "pause", *more]),
            st.integers(0, streams - 1),
            st.integers(3, 90),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=30,
    )


FACTORS = st.fixed_dictionaries({"kind0": st.sampled_from([0.25, 0.5, 2.0]), "kind1": st.sampled_from([1.0, 0.5])})


@settings(max_examples=150, deadline=None)
@given(programs(1))
def test_on_one_stream_it_foretells_the_run_without_some_work(program: list[Action]) -> None:
    before, after = Run({}), Run({"kind0": 0.0})
    before.of(program)
    truth = after.of(program)
    assert replayed(before.trace, ["kind0"]).gpu_span_us.tolist() == pytest.approx([truth])


@settings(max_examples=150, deadline=None)
@given(programs(1), FACTORS)
def test_on_one_stream_it_foretells_the_run_with_faster_or_slower_work(
    program: list[Action], factors: dict[str, float]
) -> None:
    before, after = Run({}), Run(factors)
    before.of(program)
    truth = after.of(program)
    assert scaled(before.trace, factors).gpu_span_us.tolist() == pytest.approx([truth])


@settings(max_examples=200, deadline=None)
@given(programs(STREAMS, "sync", "event"))
def test_with_streams_waits_and_events_it_never_foretells_more_than_is_gained(program: list[Action]) -> None:
    before, after = Run({}), Run({"kind0": 0.0})
    measured = before.of(program)
    truth = after.of(program)
    (foretold,) = replayed(before.trace, ["kind0"]).gpu_span_us.tolist()
    # work of another stream that ended just before a wait returned is taken for what it waited for
    unknown = AFTER_WAIT * sum(what == "sync" for what, *_ in program)
    assert truth - unknown - 1e-3 <= foretold <= measured + 1e-3


@settings(max_examples=100, deadline=None)
@given(programs(STREAMS, "sync", "event"), st.sampled_from([0.25, 0.5]), st.sampled_from([1.5, 4.0]))
def test_with_streams_less_work_never_lengthens_and_more_never_shortens(
    program: list[Action], less: float, more: float
) -> None:
    before = Run({})
    measured = before.of(program)
    assert replayed(before.trace).gpu_span_us.tolist() == pytest.approx([measured])
    assert scaled(before.trace, {"kind0": less}).gpu_span_us[0] <= measured + 1e-3
    assert scaled(before.trace, {"kind0": more}).gpu_span_us[0] >= measured - 1e-3
