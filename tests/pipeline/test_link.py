"""Kernel to launch to op: by correlation and by nesting, never by `External id`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kineto import Kineto

from stepscope import load
from stepscope.pipeline.link import NONE, innermost, link, parents

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

Interval = tuple[int, int, int]
"""Thread, start, end."""


def linked_names(trace: Kineto, folder: Path) -> dict[str, tuple[str | None, str | None]]:
    """Return, by kernel, the names of its launch and its op."""
    linked = link(load(trace.save(folder / "trace.json")))
    launches, ops = linked.trace.launches["name"].to_list(), linked.trace.ops["name"].to_list()
    return {
        name: (None if launch is None else launches[launch], None if op is None else ops[op])
        for name, launch, op in linked.kernels.select("name", "launch", "op").iter_rows()
    }


def test_the_innermost_op_around_the_launch_is_the_kernels(tmp_path: Path) -> None:
    trace = Kineto()
    trace.op("aten::to", 0, 100)
    trace.op("aten::_to_copy", 5, 90)
    trace.op("aten::empty", 10, 10)
    trace.op("aten::copy_", 30, 40)
    trace.kernel("cast", 500, 80, correlation=trace.launch(40))
    trace.kernel("between", 600, 80, correlation=trace.launch(22))
    trace.kernel("after", 700, 80, correlation=trace.launch(96))
    assert linked_names(trace, tmp_path) == {
        "cast": ("cudaLaunchKernel", "aten::copy_"),
        "between": ("cudaLaunchKernel", "aten::_to_copy"),
        "after": ("cudaLaunchKernel", "aten::to"),
    }


def test_ops_of_another_thread_do_not_count(tmp_path: Path) -> None:
    trace = Kineto()
    trace.op("forward", 0, 100, tid=1)
    trace.op("backward", 10, 80, tid=2)
    trace.kernel("one", 500, 1, correlation=trace.launch(50, tid=1))
    trace.kernel("two", 510, 1, correlation=trace.launch(55, tid=2))
    trace.kernel("three", 520, 1, correlation=trace.launch(57, tid=3))
    found = linked_names(trace, tmp_path)
    assert {name: op for name, (_, op) in found.items()} == {"one": "forward", "two": "backward", "three": None}


def test_an_external_id_that_lies_is_not_used(tmp_path: Path) -> None:
    """Before October 2024 the id on a kernel was its correlation, which is some other op's id."""
    trace = Kineto()
    trace.op("aten::unrelated", 0, 10, external_id=77)
    trace.op("aten::mm", 20, 10, external_id=5)
    trace.launch(25, correlation=77)
    trace.kernel("gemm", 100, 50, correlation=77, external_id=77)
    assert linked_names(trace, tmp_path) == {"gemm": ("cudaLaunchKernel", "aten::mm")}


def test_a_kernel_without_a_launch_has_none_and_no_op(tmp_path: Path) -> None:
    trace = Kineto()
    trace.op("aten::mm", 0, 100, external_id=9)
    trace.launch(10, correlation=1)
    trace.kernel("queued before", 20, 5, correlation=4711, external_id=9)
    trace.kernel("no correlation", 30, 5, external_id=9)
    assert linked_names(trace, tmp_path) == {"queued before": (None, None), "no correlation": (None, None)}


def test_a_launch_outside_every_op_gives_its_kernel_no_op(tmp_path: Path) -> None:
    trace = Kineto()
    trace.op("aten::before", 0, 10)
    trace.op("aten::after", 30, 10)
    trace.kernel("triton", 100, 5, correlation=trace.launch(15))
    assert linked_names(trace, tmp_path) == {"triton": ("cudaLaunchKernel", None)}


def test_a_trace_of_the_gpu_alone_links_nothing(tmp_path: Path) -> None:
    trace = Kineto()
    trace.kernel("k", 0, 5, correlation=3)
    assert linked_names(trace, tmp_path) == {"k": (None, None)}


def test_launches_without_ops_link_to_no_op(tmp_path: Path) -> None:
    trace = Kineto()
    trace.kernel("k", 10, 5, correlation=trace.launch(0))
    assert linked_names(trace, tmp_path) == {"k": ("cudaLaunchKernel", None)}


def test_a_driver_call_is_a_launch(tmp_path: Path) -> None:
    trace = Kineto()
    trace.op("triton_op", 0, 20)
    trace.kernel("k", 30, 5, correlation=trace.launch(5, name="cuLaunchKernelEx", category="cuda_driver"))
    assert linked_names(trace, tmp_path) == {"k": ("cuLaunchKernelEx", "triton_op")}


def test_a_runtime_call_and_the_driver_call_within_it_are_one_launch(tmp_path: Path) -> None:
    trace = Kineto()
    trace.op("aten::mm", 1, 50)
    correlation = trace.launch(5, 30)
    trace.launch(10, 15, name="cuLaunchKernel", category="cuda_driver", correlation=correlation)
    trace.kernel("k", 60, 5, correlation=correlation)
    assert linked_names(trace, tmp_path) == {"k": ("cudaLaunchKernel", "aten::mm")}
    assert link(load(tmp_path / "trace.json")).kernels.height == 1


def test_all_kernels_of_a_replay_share_its_launch(tmp_path: Path) -> None:
    trace = Kineto()
    trace.op("aten::copy_", 0, 5)
    trace.replay([("a", 10, (1, 1, 1)), ("b", 20, (2, 1, 1))], at=10)
    assert linked_names(trace, tmp_path) == {"a": ("cudaGraphLaunch", None), "b": ("cudaGraphLaunch", None)}


def test_copies_and_sets_are_linked_too(tmp_path: Path) -> None:
    trace = Kineto()
    trace.op("aten::item", 0, 100)
    trace.memcpy(50, 5, size=4, correlation=trace.launch(10, name="cudaMemcpyAsync"))
    trace.memset(60, 5, size=64, correlation=trace.launch(20, name="cudaMemsetAsync"))
    assert linked_names(trace, tmp_path) == {
        "Memcpy DtoH (Device -> Pinned)": ("cudaMemcpyAsync", "aten::item"),
        "Memset (Device)": ("cudaMemsetAsync", "aten::item"),
    }


@pytest.mark.parametrize("stray", [0.0, 0.5])
def test_an_op_at_time_zero_of_an_absolute_clock_confuses_no_thread(stray: float, tmp_path: Path) -> None:
    """Some files hold spans at 0 among times since 1970: 10**18 ns apart, on several threads."""
    trace = Kineto()
    now = 1_700_000_000_000_000
    trace.op("stray", stray, 1, tid=99)
    for tid in range(40):
        trace.op(f"op {tid}", now + tid, 100, tid=tid)
        trace.kernel(f"kernel {tid}", now + 1000 + tid, 1, correlation=trace.launch(now + tid + 5, tid=tid))
    found = linked_names(trace, tmp_path)
    assert {name: op for name, (_, op) in found.items()} == {f"kernel {tid}": f"op {tid}" for tid in range(40)}


def rows_at(intervals: list[Interval], points: list[tuple[int, int]]) -> list[int]:
    columns = np.array(intervals, dtype=np.int64).reshape(-1, 3).T
    asked = np.array(points, dtype=np.int64).reshape(-1, 2).T
    found = innermost(columns[0], columns[1], columns[2], asked[0], asked[1])
    return [int(row) for row in found]


def test_innermost_by_hand() -> None:
    intervals = [(0, 0, 100), (0, 10, 20), (0, 12, 15), (1, 5, 50), (0, 40, 40)]
    points = [(0, 0), (0, 11), (0, 13), (0, 15), (0, 20), (0, 99), (0, 100), (1, 4), (1, 49), (0, 40), (0, 41), (2, 13)]
    assert rows_at(intervals, points) == [0, 1, 2, 1, 0, 0, NONE, NONE, 3, 4, 0, NONE]


@pytest.mark.parametrize("order", [1, -1])
def test_of_ops_that_begin_or_end_together_the_shorter_is_within(order: int) -> None:
    begin_together = [(0, 0, 10), (0, 0, 5)][::order]
    end_together = [(0, 0, 10), (0, 5, 10)][::order]
    assert begin_together[rows_at(begin_together, [(0, 2)])[0]] == (0, 0, 5)
    assert end_together[rows_at(end_together, [(0, 7)])[0]] == (0, 5, 10)


@st.composite
def forest(draw: st.DrawFn) -> list[Interval]:
    """Well-nested intervals of several threads, in any order; a child may share its parent's start or end."""
    intervals: list[Interval] = []

    def grow(thread: int, low: int, high: int, depth: int) -> None:
        at = low
        while at < high and draw(st.booleans()):
            start = draw(st.integers(at, high - 1))
            end = draw(st.integers(start + 1, high))
            intervals.append((thread, start, end))
            if depth:
                grow(thread, start, end, depth - 1)
            at = end

    for thread in range(draw(st.integers(1, 3))):
        grow(thread, draw(st.integers(-20, 0)), draw(st.integers(1, 40)), 4)
    return intervals


def stack_walk(intervals: list[Interval], thread: int, at: int) -> set[Interval]:
    """Walk the events of a thread in time, and return the interval on top of the stack at a time."""
    mine = [interval for interval in intervals if interval[0] == thread]
    stack: list[Interval] = []
    for interval in sorted(mine, key=lambda row: (row[1], -row[2])):
        if interval[1] > at:
            break
        while stack and stack[-1][2] <= interval[1]:
            stack.pop()
        stack.append(interval)
    while stack and stack[-1][2] <= at:
        stack.pop()
    return {stack[-1]} if stack else set()


@settings(max_examples=300)
@given(forest(), st.lists(st.tuples(st.integers(0, 3), st.integers(-25, 45)), max_size=12), st.randoms())
def test_innermost_is_the_top_of_the_stack(
    intervals: list[Interval],
    points: list[tuple[int, int]],
    random: Random,
) -> None:
    random.shuffle(intervals)
    found = rows_at(intervals, points)
    assert [{intervals[row]} if row != NONE else set() for row in found] == [
        stack_walk(intervals, thread, at) for thread, at in points
    ]


def parents_of(intervals: list[Interval]) -> list[int]:
    columns = np.array(intervals, dtype=np.int64).reshape(-1, 3).T
    return [int(row) for row in parents(columns[0], columns[1], columns[2])]


def test_parents_by_hand() -> None:
    intervals = [(0, 12, 15), (0, 0, 100), (1, 5, 50), (0, 10, 20), (0, 40, 40), (0, 0, 9), (0, 0, 100), (0, 20, 30)]
    # of the two that are equal the first holds the second, which holds the others; a sibling begins where one ends
    assert parents_of(intervals) == [3, NONE, NONE, 6, 6, 6, 1, 6]
    assert parents_of([]) == []


def parent_walk(intervals: list[Interval], row: int) -> Interval | None:
    """Walk the events of a thread in time, and return the interval below one on the stack."""
    thread = intervals[row][0]
    stack: list[Interval] = []
    for interval in sorted((mine for mine in intervals if mine[0] == thread), key=lambda mine: (mine[1], -mine[2])):
        while stack and stack[-1][2] <= interval[1]:
            stack.pop()
        if interval == intervals[row]:
            break
        stack.append(interval)
    return stack[-1] if stack else None


@settings(max_examples=300)
@given(forest(), st.randoms())
def test_a_parent_is_below_on_the_stack(intervals: list[Interval], random: Random) -> None:
    intervals = list(set(intervals))  # of equal ones either may hold the other
    random.shuffle(intervals)
    found = [intervals[row] if row != NONE else None for row in parents_of(intervals)]
    assert found == [parent_walk(intervals, row) for row in range(len(intervals))]


def test_times_far_apart_on_many_threads_do_not_overflow() -> None:
    """A span without a time stands at 0 beside times since 1970."""
    far = 1_700_000_000_000_000_000
    thread = np.arange(40)
    start = np.where(thread == 0, 0, far + thread)
    found = innermost(thread, start, start + 10, thread, start + 5)
    assert found.tolist() == thread.tolist()


def test_bytes_of_a_copy_that_only_the_host_tells(tmp_path: Path) -> None:
    """ROCm 6.2 has `size` on the runtime's row and no bytes on the GPU's; other versions have bytes on both."""
    trace = Kineto()
    trace.span("cuda_runtime", "hipMemcpyAsync", 1, 2, args={"correlation": 5, "size": "4096"})
    trace.span("gpu_memcpy", "Memcpy DtoD", 4, 1, args={"correlation": 5, "device": 0, "stream": 0})
    trace.span("cuda_runtime", "hipMemcpyAsync", 6, 2, args={"correlation": 6, "bytes": "77"})
    trace.span("gpu_memcpy", "Memcpy DtoD", 9, 1, args={"correlation": 6, "bytes": 64, "device": 0, "stream": 0})
    trace.span("cuda_runtime", "hipLaunchKernel", 10, 2, args={"correlation": 7, "size": 512})
    trace.span("kernel", "copy", 13, 1, args={"correlation": 7, "device": 0, "stream": 0})
    kernels = link(load(trace.save(tmp_path / "t.json"))).kernels
    assert kernels["bytes"].to_list() == [4096, 64, None]


def test_calls_that_overlap_by_a_rounded_time_follow_each_other(tmp_path: Path) -> None:
    trace = Kineto()
    trace.op("forward", 0, 100)
    for number in range(3):  # each begins 1 ns before the one before it ends
        trace.op(f"op {number}", 10 + 20 * number - (0.001 if number else 0), 20.001)
        trace.op(f"inner {number}", 15 + 20 * number, 5)
        trace.kernel(f"inner kernel {number}", 500 + number, 0.5, correlation=trace.launch(16 + 20 * number))
        trace.kernel(f"kernel {number}", 600 + number, 0.5, correlation=trace.launch(25 + 20 * number))
    found = {name: op for name, (_, op) in linked_names(trace, tmp_path).items()}
    assert found == {f"{inner}kernel {n}": f"{inner or 'op '}{n}" for n in range(3) for inner in ("", "inner ")}
    linked = link(load(tmp_path / "trace.json"))
    ops = linked.trace.ops
    names = ops["name"].to_list()
    start = ops["start_ns"].to_numpy()
    around = parents(ops["thread"].to_numpy(), start, start + ops["duration_ns"].to_numpy())
    assert {name: names[row] for name, row in zip(names, around.tolist(), strict=True) if row != NONE} == {
        **{f"op {n}": "forward" for n in range(3)},
        **{f"inner {n}": f"op {n}" for n in range(3)},
    }
