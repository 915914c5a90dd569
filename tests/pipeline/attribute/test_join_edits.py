"""Joins of traces that differ: whatever was inserted or left out, no kernel gets another's op, and few get none."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kineto import Kineto

from stepscope import load
from stepscope.pipeline.attribute.join import Donor, JoinMethod, join
from stepscope.pipeline.link import link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.pipeline.attribute.join import Joined

Kernel = tuple[str, int]
"""Name, and blocks in x."""
LAYER = (
    ("norm", 1),
    ("gemm", 64),
    ("norm", 1),
    ("rope", 8),
    ("attention", 132),
    ("gemm", 32),
    ("gemm", 64),
    ("act", 4),
)
STEP: tuple[Kernel, ...] = (("embedding", 1), *LAYER * 12, ("head", 900), ("argmax", 1))


def graph(*replays: Sequence[Kernel], device: int = 0, stream: int = 7) -> Kineto:
    trace = Kineto()
    for number, kernels in enumerate(replays):
        at = 100.0 + 1e6 * number
        correlation = trace.launch(at, name="cudaGraphLaunch")
        for place, (name, blocks) in enumerate(kernels):
            trace.kernel(
                name, at + 10 + 2 * place, 1, correlation=correlation, grid=(blocks, 1, 1), device=device, stream=stream
            )
    return trace


def eager(*passes: Sequence[Kernel]) -> Kineto:
    """Return passes in which each kernel has an op of its own: `kernel/blocks/number`, numbered over all passes."""
    trace = Kineto()
    for number, (name, blocks) in enumerate(kernel for kernels in passes for kernel in kernels):
        op = f"{name}/{blocks}/{number}"
        trace.call(name, at=100 + 10 * number, duration=1, op=op, grid=(blocks, 1, 1), stream=20)
    return trace


def joined(trace: Kineto, donor: Kineto) -> Joined:
    with tempfile.TemporaryDirectory() as folder:
        both = [load(part.save(Path(folder) / f"{number}.json")) for number, part in enumerate((trace, donor))]
    return join(link(both[0]), Donor.of(link(both[1])))


def ops(of: Joined) -> list[str | None]:
    return [None if name is None else str(name) for name in of.linked.with_op_facts(of.linked.kernels)["op_name"]]


def longest(first: Sequence[Kernel], second: Sequence[Kernel]) -> int:
    """Return the length of a longest common subsequence, as the textbook finds it."""
    row = [0] * (len(second) + 1)
    for one in first:
        above, row = row, [0]
        for j, other in enumerate(second):
            row.append(above[j] + 1 if one == other else max(above[j + 1], row[j]))
    return row[-1]


@st.composite
def edited(draw: st.DrawFn) -> list[Kernel]:
    """Draw a step in which up to a seventh of the kernels was left out, and as many others put in."""
    places = st.sets(st.integers(0, len(STEP) - 1), max_size=len(STEP) // 7)
    removed, inserted = draw(places), draw(places)
    new = st.sampled_from([("gemm", 64), ("fill", 3), ("norm", 1), ("norm", 2)])
    step: list[Kernel] = []
    for place, kernel in enumerate(STEP):
        if place in inserted:
            step.append(draw(new))
        if place not in removed:
            step.append(kernel)
    return step


@settings(max_examples=40, deadline=None)
@given(edited(), edited(), st.integers(0, 2))
def test_no_op_is_another_kernels_and_as_many_are_joined_as_can_be(
    here: list[Kernel], there: list[Kernel], before: int
) -> None:
    other_size = [(name, blocks + 1) for name, blocks in STEP]
    result = joined(graph(here), eager(*[other_size] * before, there, other_size))
    found = ops(result)
    for (name, blocks), op in zip(here, found, strict=True):
        assert op is None or op.rpartition("/")[0] == f"{name}/{blocks}"
    numbers = [int(op.rpartition("/")[2]) for op in found if op is not None]
    assert numbers == sorted(set(numbers))  # in order, and none twice
    assert len(numbers) >= 0.97 * longest(here, there)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_equal_steps_are_joined_whole_whatever_the_order_of_the_streams(data: st.DataObject) -> None:
    side = [(f"side_{number % 3}", 1) for number in range(len(STEP))]
    trace = Kineto()
    correlation = trace.launch(50, name="cudaGraphLaunch")
    lag = data.draw(st.integers(0, 400))
    for place, ((name, blocks), (beside, _)) in enumerate(zip(STEP, side, strict=True)):
        trace.kernel(name, 100 + 4 * place, 1, correlation=correlation, grid=(blocks, 1, 1), stream=7)
        trace.kernel(beside, 102 + 4 * place + lag, 1, correlation=correlation, stream=8)
    twin = Kineto()
    for place, ((name, blocks), (beside, _)) in enumerate(zip(STEP, side, strict=True)):
        twin.call(name, at=100 + 40 * place, duration=1, op=f"{name}/{place}", grid=(blocks, 1, 1), stream=20)
        twin.call(beside, at=120 + 40 * place, duration=1, op=f"{beside}/{place}", stream=21)
    result = joined(trace, twin)
    streams = result.linked.kernels["stream"].to_numpy()
    for stream, names in ((7, STEP), (8, side)):
        found = np.array(ops(result), dtype=object)[streams == stream].tolist()
        assert found == [f"{name}/{place}" for place, (name, _) in enumerate(names)]


@pytest.mark.parametrize("device", [0, 1])
def test_equal_stream_numbers_of_two_devices_are_two_streams(device: int) -> None:
    """One process drives two devices, both on stream 20; they interleave."""
    twin = Kineto()
    for place, (name, blocks) in enumerate(STEP):
        for gpu in (0, 1):
            at = 100.0 + 20 * place + 10 * gpu
            twin.op(f"{name}/{place}/{gpu}", at - 1, 6)
            twin.kernel(name, at + 8, 1, correlation=twin.launch(at), grid=(blocks + gpu, 1, 1), device=gpu, stream=20)
    replayed = [(name, blocks + device) for name, blocks in STEP]
    result = joined(graph(replayed, device=device), twin)
    assert ops(result) == [f"{name}/{place}/{device}" for place, (name, _) in enumerate(STEP)]


def test_a_twin_of_another_batch_size_gives_no_kernel_a_shape_of_another_grid() -> None:
    grows = {"gemm", "attention", "act", "rope"}
    other = [(name, blocks * 3 if name in grows else blocks) for name, blocks in STEP]
    result = joined(graph(STEP), eager(other, other))
    assert ops(result) == [None] * len(STEP)
    (warning,) = result.warnings
    assert warning.code == "capture-trace-differs"
    assert warning.message.startswith("27.3% of the replayed kernels")  # 24 norms and three others of 99


def test_a_cuda_capture_without_warm_up_says_what_was_missing() -> None:
    """CUDA's launches name no kernel: that their number is that of a replay does not tell of which batch size."""
    capture = Kineto()
    capture.launch(10, name="cudaStreamBeginCapture")
    for number, (name, _) in enumerate(STEP):
        capture.op(f"aten::{name}", 20 + 10 * number, 8)
        capture.launch(21 + 10.0 * number)
    capture.launch(30 + 10.0 * len(STEP), name="cudaStreamEndCapture")
    result = joined(graph(STEP), capture)
    assert ops(result) == [None] * len(STEP)
    (warning,) = result.warnings
    assert warning.code == "capture-trace-unnamed"
    assert "warm up for the capture must be recorded too" in warning.message


def test_a_capture_with_its_warm_up_is_joined_and_said_to_be_one() -> None:
    capture = eager(STEP, STEP)
    for name in ("cudaStreamBeginCapture", "cudaLaunchKernel", "cudaStreamEndCapture"):
        capture.launch(1e6, name=name)
    result = joined(graph(STEP, STEP), capture)
    assert result.method is JoinMethod.CAPTURE_LAUNCHES
    last = len(STEP)  # the first number of the last pass, which the capture follows
    assert ops(result) == [f"{name}/{blocks}/{last + place}" for place, (name, blocks) in enumerate(STEP)] * 2


@pytest.mark.parametrize(
    ("replays", "kernels"), [(1, 100_000), (10, 10_000)], ids=["a replay too long to be one", "ten long replays"]
)
def test_a_hundred_thousand_kernels_of_one_name_take_seconds(replays: int, kernels: int) -> None:
    lengths = [kernels - number for number in range(replays)]  # no two are equal, so each is looked up
    trace = graph(*([("copy", 1)] * length for length in lengths))
    donor = eager([("copy", 1)] * 3000, [("copy", 1)] * 3000)
    with tempfile.TemporaryDirectory() as folder:
        linked = link(load(trace.save(Path(folder) / "t.json")))
        twin = Donor.of(link(load(donor.save(Path(folder) / "d.json"))))
    begin = time.perf_counter()
    result = join(linked, twin)
    assert time.perf_counter() - begin < 15
    assert result.method is None  # 6,000 of 10,000 are too few


def test_a_replay_on_a_thousand_streams_is_damage_and_takes_no_time() -> None:
    replay, donor = Kineto(), Kineto()
    correlation = replay.launch(100, name="cudaGraphLaunch")
    for stream in range(1000):
        replay.kernel("k", 110 + stream, 1, correlation=correlation, stream=stream)
        donor.call("k", at=10 + 10 * stream, duration=1, op="aten::k", stream=stream)
    begin = time.perf_counter()
    assert joined(replay, donor).method is None
    assert time.perf_counter() - begin < 3  # each stream with each takes 20 s
