"""Ops and what they launched: grouped as recorded, every figure worked out by hand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.decode_steps import Work, copied, eager, graphed
from tests.kineto import Kineto
from tests.stages import stepped

from stepscope.pipeline.op_groups import COLUMNS, list_ops

if TYPE_CHECKING:
    from collections.abc import Sequence

CAST = copied("cast_kernel", 30.0, [100, 8], "c10::Float8_e4m3fn", "c10::BFloat16")
STEP = "step[DECODE bs=1]"


def listed(trace: Kineto, name: str | None = None) -> list[dict[str, Any]]:
    linked, steps = stepped(trace)
    return list_ops(linked, steps, name).to_dicts()


def cast_within_to(at: float = 10.0, *, dims: Sequence[Any] = ([100, 8], [100, 8], [])) -> Kineto:
    """`aten::to` → `aten::_to_copy` → `aten::copy_`, and an op around all, in a function of the user's."""
    trace = Kineto()
    trace.annotation(STEP, at - 8, 100)
    trace.frame("model.py(3): forward", at - 7, 90)
    trace.frame("nn.Module: Attention_0", at - 6.5, 80)
    trace.op("model::attention", at - 6, 60)
    trace.op("aten::to", at - 5, 30, dims=[[100, 8], []], types=["c10::Float8_e4m3fn", "Scalar"])
    trace.op("aten::_to_copy", at - 4, 28)
    trace.op("aten::empty", at - 3, 1)
    types = ["c10::BFloat16", "c10::Float8_e4m3fn", "Scalar"]
    trace.call("cast_kernel", at=at, duration=30, op="aten::copy_", dims=dims, types=types, grid=(7, 2, 1))
    return trace


def test_a_call_tells_all_that_was_recorded_of_it() -> None:
    assert listed(cast_within_to()) == [
        {
            "name": "aten::copy_",
            "input_shapes": [[100, 8], [100, 8], []],
            "dtypes": ["BFloat16", "Float8_e4m3fn", None],
            "calls": 1,
            "calls_per_step": 1.0,
            "time_us_per_step": 30.0,
            "kernel": "cast_kernel",
            "grid": [7, 2, 1],
            "bytes_per_call": 100 * 8 * (1 + 2),
            "parents": ["model::attention", "aten::to", "aten::_to_copy"],
            "source": "model.py:3 forward",
            "module": "Attention",
            "layers": None,
        }
    ]


def test_an_outer_op_that_is_named_has_the_time_of_what_was_launched_below_it() -> None:
    (row,) = listed(cast_within_to(), "aten::to")
    assert (row["name"], row["calls"], row["time_us_per_step"], row["kernel"]) == ("aten::to", 1, 30.0, "cast_kernel")
    assert (row["input_shapes"], row["dtypes"]) == ([[100, 8], []], ["Float8_e4m3fn", None])
    assert (row["parents"], row["bytes_per_call"]) == (["model::attention"], 2400)


def test_an_op_that_launched_nothing_is_listed_where_it_is_named() -> None:
    (row,) = listed(cast_within_to(), "aten::empty")
    assert (row["calls"], row["calls_per_step"], row["time_us_per_step"]) == (1, 1.0, 0.0)
    assert (row["kernel"], row["grid"], row["bytes_per_call"]) == (None, None, None)
    assert row["parents"] == ["model::attention", "aten::to", "aten::_to_copy"]


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("aten::*copy*", {"aten::_to_copy", "aten::copy_"}),
        ("aten::?o", {"aten::to"}),
        ("copy_", set()),
        ("ATEN::to", set()),
        ("aten::[ce]*", {"aten::copy_", "aten::empty"}),
        ("*", {"model::attention", "aten::to", "aten::_to_copy", "aten::copy_", "aten::empty"}),
    ],
)
def test_the_whole_name_must_match_the_glob(glob: str, names: set[str]) -> None:
    assert {row["name"] for row in listed(cast_within_to(), glob)} == names


def test_kernels_of_a_graph_are_listed_under_their_own_names() -> None:
    work = [Work("gemm", 20.0, grid=(4, 1, 1)), Work("norm", 5.0), Work("gemm", 22.0, grid=(4, 1, 1))]
    rows = listed(graphed([work] * 5))
    assert [(row["name"], row["kernel"], row["grid"]) for row in rows] == [
        ("gemm", "gemm", [4, 1, 1]),
        ("norm", "norm", [1, 1, 1]),
    ]
    assert [(row["calls"], row["calls_per_step"], row["time_us_per_step"]) for row in rows] == [
        (10, 2.0, 42.0),
        (5, 1.0, 5.0),
    ]
    assert all(
        (row["input_shapes"], row["dtypes"], row["parents"], row["source"]) == (None, None, [], None) for row in rows
    )
    assert [row["name"] for row in listed(graphed([work] * 5), "nor*")] == ["norm"]


def test_figures_per_step_are_medians_over_the_steady_steps() -> None:
    steps = [[Work("gemm", us, "aten::mm")] * times for us, times in ((500.0, 9), (10.0, 1), (20.0, 2), (30.0, 3))]
    (row,) = listed(eager(steps))
    # the first of four steps is not steady; of 10 × 1, 20 × 2, 30 × 3 the median is 40
    assert (row["calls"], row["calls_per_step"], row["time_us_per_step"]) == (15, 2.0, 40.0)


def test_of_an_even_number_of_steps_it_is_the_mean_of_the_middle_two_and_absence_counts() -> None:
    rare, rarer = Work("rare", 8.0, "aten::rare"), Work("rarer", 8.0, "aten::rarer")
    steps = [[CAST], [CAST, rare], [CAST, rare, rarer], [CAST], [CAST]]
    rows = {row["name"]: row for row in listed(eager(steps))}
    assert (rows["aten::rare"]["calls_per_step"], rows["aten::rare"]["time_us_per_step"]) == (0.5, 4.0)
    assert (rows["aten::rarer"]["calls"], rows["aten::rarer"]["calls_per_step"]) == (1, 0.0)


def test_shapes_kernels_and_sources_tell_groups_apart() -> None:
    trace = Kineto()
    for number, (shape, kernel, line) in enumerate([(8, "a", 1), (9, "a", 1), (8, "b", 1), (8, "a", 2), (8, "a", 1)]):
        at = 10.0 + number * 20
        trace.frame(f"m.py({line}): f", at - 3, 15)
        trace.call(kernel, at=at, duration=1, op="aten::mm", dims=[[shape]], types=["float"])
    rows = listed(trace)
    assert sorted((row["input_shapes"], row["kernel"], row["source"], row["calls"]) for row in rows) == [
        ([[8]], "a", "m.py:1 f", 2),
        ([[8]], "a", "m.py:2 f", 1),
        ([[8]], "b", "m.py:1 f", 1),
        ([[9]], "a", "m.py:1 f", 1),
    ]
    assert {tuple(row["dtypes"]) for row in rows} == {("Float",)}


def test_an_op_with_several_kernels_has_a_row_for_each() -> None:
    trace = Kineto()
    trace.op("aten::linear", 5, 50)
    trace.call("gemm", at=10, duration=20)
    trace.call("split", at=20, duration=3)
    trace.call("split", at=30, duration=4)
    rows = listed(trace)
    assert [(row["kernel"], row["calls"], row["time_us_per_step"]) for row in rows] == [
        ("gemm", 1, 20.0),
        ("split", 1, 7.0),
    ]


def test_an_op_within_one_like_it_does_not_count_its_kernel_twice() -> None:
    trace = Kineto()
    trace.op("aten::to", 5, 50)
    trace.op("aten::to", 6, 40)
    trace.call("cast", at=10, duration=20)
    rows = listed(trace, "aten::to")
    assert {(row["kernel"], row["time_us_per_step"], tuple(row["parents"])) for row in rows} == {
        ("cast", 20.0, ()),
        ("cast", 20.0, ("aten::to",)),
    }


def test_bytes_of_a_memcpy_are_those_recorded() -> None:
    trace = Kineto()
    trace.op("aten::copy_", 5, 20, dims=[[3], [3]], types=["float", "float"])
    trace.memcpy(20, 2, size=4096, correlation=trace.launch(10, name="cudaMemcpyAsync"))
    trace.memset(40, 1, size=64, correlation=trace.launch(32, name="cudaMemsetAsync"))
    rows = listed(trace)
    assert [(row["name"], row["bytes_per_call"], row["grid"]) for row in rows] == [
        ("aten::copy_", 4096, None),
        ("Memset (Device)", 64, None),
    ]


def test_a_kernel_without_an_op_has_the_source_of_its_launch() -> None:
    trace = Kineto()
    trace.frame("run.py(7): replay", 5, 50)
    trace.call("triton_kernel", at=10, duration=20)
    (row,) = listed(trace)
    assert (row["name"], row["source"]) == ("triton_kernel", "run.py:7 replay")


def test_without_steps_nothing_is_known_per_step() -> None:
    trace = Kineto()
    trace.op("aten::mm", 5, 50)
    (row,) = listed(trace, "*")
    assert (row["calls"], row["calls_per_step"], row["time_us_per_step"]) == (1, None, None)


def test_an_empty_list_has_the_columns_all_the_same() -> None:
    linked, steps = stepped(cast_within_to())
    found = list_ops(linked, steps, "nothing")
    assert (found.height, found.schema) == (0, COLUMNS)


def test_damaged_shapes_are_not_known() -> None:
    (row,) = listed(cast_within_to(dims=[["x", 8], {"a": 1}, []]))
    assert (row["input_shapes"], row["bytes_per_call"]) == (None, None)


def test_ops_nested_without_end_take_seconds_at_most() -> None:
    trace, count = Kineto(), 50_000
    trace.annotation(STEP, 1, 3.0 * count)
    for number in range(count):
        trace.op(f"aten::op{number % 3}", 10 + number, 2.0 * (count - number))
    trace.call("cast_kernel", at=10.5 + count, duration=0.1)
    linked, steps = stepped(trace)
    begin = time.process_time()
    (row,) = list_ops(linked, steps).to_dicts()
    assert time.process_time() - begin < 5
    assert row["parents"][:4] == ["aten::op0", "aten::op1", "aten::op2", "aten::op0"]
    assert len(row["parents"]) == count - 1
