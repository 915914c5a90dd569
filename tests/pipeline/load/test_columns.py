"""Events to columns: times to the ns, and Kineto's dialects and oddities."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from tests.kineto import Kineto

from stepscope import load
from stepscope.pipeline.load.columns import Columns
from stepscope.trace import schema

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.trace import Trace


def load_text(folder: Path, text: str, name: str = "trace.json") -> Trace:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return load(path)


def load_events(folder: Path, *events: dict[str, Any], **header: Any) -> Trace:
    return load_text(folder, json.dumps({**header, "traceEvents": events}))


def span(category: str = "cpu_op", **keys: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": "n", "pid": 1, "tid": 1, "ts": 1, "dur": 1, **keys}


def times(table: pl.DataFrame) -> list[tuple[int, int]]:
    return table.select("start_ns", "duration_ns").rows()


def spelled(*starts: str, duration: str = "1") -> str:
    """Ops at times spelled as in the file."""
    row = '{"ph": "X", "cat": "cpu_op", "name": "n", "pid": 1, "tid": 1, "ts": %s, "dur": %s}'
    return '{"traceEvents": [' + ", ".join(row % (start, duration) for start in starts) + "]}"


@pytest.mark.parametrize(
    ("starts", "relative_ns"),
    [
        (("0.001", "0.002", "1000000.123"), [0, 1, 1_000_000_122]),
        (("5", "7.5", "100"), [0, 2_500, 95_000]),
        (("1623212756351000", "1623212756351007"), [0, 7_000]),
        (("4403500170743.100", "4403500170743.101"), [0, 1]),
        (("1712195495519689.047", "1712195495519689.048", "1712195495519690.5"), [0, 1, 1_453]),
        (("1712195495519689.047", "1712195495519689.0480"), [0, 1]),
        (("1712195495519689", "1712195495519689.001"), [0, 1]),
        (("1712195495519689.999", "1712195495519690.001"), [0, 2]),
        (("1712195495519689.047123", "1712195495519689.049123"), [0, 2]),
        (("1.712195495519689047e15", "1.712195495519689049e15"), [0, 2]),
    ],
)
def test_times_are_exact_to_the_ns(starts: tuple[str, ...], relative_ns: list[int], tmp_path: Path) -> None:
    trace = load_text(tmp_path, spelled(*starts))
    assert trace.ops["start_ns"].to_list() == relative_ns


def test_one_absolute_time_alone_is_exact_against_another_table(tmp_path: Path) -> None:
    text = spelled("1712195495519689.047").replace(
        "]}", ', {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1712195495519689.110, "dur": 2}]}'
    )
    assert times(load_text(tmp_path, text).kernels) == [(63, 2_000)]


def test_metadata_and_instants_at_zero_are_not_the_origin(tmp_path: Path) -> None:
    others = [{"ph": "M", "name": "process_name", "ts": 0}, {"ph": "i", "name": "i", "ts": 1, "s": "g"}]
    trace = load_events(tmp_path, *others, span(ts=500.0), span(ts=501.25))
    assert times(trace.ops) == [(0, 1_000), (1_250, 1_000)]
    assert trace.event_count == 4


def test_a_span_at_zero_is_not_the_origin(tmp_path: Path) -> None:
    """Among times since 1970 some files hold spans at 0."""
    trace = load_events(tmp_path, span(ts=0, name="stray"), span(ts=1.6e15), span(ts=1.6e15 + 7))
    assert trace.ops["start_ns"].to_list()[1:] == [0, 7_000]
    assert trace.ops["name"].to_list() == ["stray", "n", "n"]


@pytest.mark.parametrize(
    ("duration", "ns"), [("-5", 0), ("-0.001", 0), ("0", 0), ("0.001", 1), ("2.5", 2_500), ("848.539", 848_539)]
)
def test_durations(duration: str, ns: int, tmp_path: Path) -> None:
    assert times(load_text(tmp_path, spelled("10", duration=duration)).ops) == [(0, ns)]


def test_tables_are_sorted_by_start(tmp_path: Path) -> None:
    trace = load_events(tmp_path, span(ts=30, name="c"), span(ts=10, name="a"), span(ts=20, name="b"))
    assert trace.ops["name"].to_list() == ["a", "b", "c"]


def test_tables_have_the_columns_that_the_schema_declares(tmp_path: Path) -> None:
    trace = load_events(tmp_path, span())
    declared = {
        "kernels": schema.KERNELS,
        "launches": schema.LAUNCHES,
        "ops": schema.OPS,
        "annotations": schema.ANNOTATIONS,
        "frames": schema.FRAMES,
    }
    for name, columns in declared.items():
        assert getattr(trace, name).schema == schema.polars_schema(columns)


def test_stacks_and_modules_of_an_op_are_kept_and_empty_or_odd_ones_are_none(tmp_path: Path) -> None:
    told = span(ts=1, args={"Call stack": "a.py(1): f;b.py(2): g", "Module Hierarchy": "TOP(C)::forward."})
    empty = span(ts=2, args={"Call stack": "", "Module Hierarchy": ""})
    odd = span(ts=3, args={"Call stack": [{"a": 1}], "Module Hierarchy": 7})
    trace = load_events(tmp_path, told, empty, odd, span(ts=4))
    assert trace.ops["call_stack"].to_list() == ["a.py(1): f;b.py(2): g", None, None, None]
    assert trace.ops["module_hierarchy"].to_list() == ["TOP(C)::forward.", None, None, None]


@pytest.mark.parametrize(
    ("category", "table", "kind"),
    [
        ("kernel", "kernels", "kernel"),
        ("gpu_memcpy", "kernels", "memcpy"),
        ("gpu_memset", "kernels", "memset"),
        ("cuda_runtime", "launches", None),
        ("cuda_driver", "launches", None),
        ("cpu_op", "ops", None),
        ("user_annotation", "annotations", None),
        ("python_function", "frames", None),
        ("Kernel", "kernels", "kernel"),
        ("Memcpy", "kernels", "memcpy"),
        ("Memset", "kernels", "memset"),
        ("Runtime", "launches", None),
        ("Operator", "ops", None),
    ],
)
def test_categories_of_today_and_of_2021(category: str, table: str, kind: str | None, tmp_path: Path) -> None:
    trace = load_events(tmp_path, span(category, name="the name"))
    sizes = {name: getattr(trace, name).height for name in ("kernels", "launches", "ops", "annotations", "frames")}
    assert sizes == {name: int(name == table) for name in sizes}
    assert getattr(trace, table)["name"].to_list() == ["the name"]
    if kind is not None:
        assert trace.kernels["kind"].to_list() == [kind]


@pytest.mark.parametrize("category", ["gpu_user_annotation", "ac2g", "overhead", "Trace", "cuda_sync", "mtia_ccp", ""])
def test_other_categories_are_counted_and_not_kept(category: str, tmp_path: Path) -> None:
    trace = load_events(tmp_path, span(category), span("cpu_op"))
    assert trace.event_count == 2
    assert (trace.ops.height, trace.kernels.height, trace.annotations.height) == (1, 0, 0)


def test_profiler_steps_of_2021_are_annotations(tmp_path: Path) -> None:
    trace = load_events(tmp_path, span("Operator", name="ProfilerStep#3"), span("Operator", name="aten::add", ts=2))
    assert trace.annotations["name"].to_list() == ["ProfilerStep#3"]
    assert trace.ops["name"].to_list() == ["aten::add"]


def test_threads_are_told_apart_by_process_and_by_number_or_name(tmp_path: Path) -> None:
    keys: list[tuple[Any, Any]] = [(1, 1), (1, "stream 7"), ("Spans", ""), (2, 1), (1, 1), (1, "stream 7")]
    trace = load_events(tmp_path, *(span(pid=pid, tid=tid, ts=ts) for ts, (pid, tid) in enumerate(keys, 1)))
    named = [trace.threads[index] for index in trace.ops["thread"]]
    assert named == [("1", "1"), ("1", "stream 7"), ("Spans", ""), ("2", "1"), ("1", "1"), ("1", "stream 7")]


def test_a_number_and_its_text_are_the_same_thread(tmp_path: Path) -> None:
    """In files of 2021 a thread is "5555" in one place and 5555 in another."""
    trace = load_events(tmp_path, span("Operator", tid="5555"), span("Runtime", tid=5555, ts=2))
    assert trace.ops["thread"].to_list() == trace.launches["thread"].to_list()


def test_kernel_arguments(tmp_path: Path) -> None:
    args = {"device": 3, "stream": 7, "correlation": 99, "grid": [557496, 2, 1], "block": [128, 1, 4], "registers": 8}
    row = load_events(tmp_path, span("kernel", args=args)).kernels.row(0, named=True)
    assert (row["device"], row["stream"], row["correlation"], row["bytes"]) == (3, 7, 99, None)
    assert [row[f"{what}_{axis}"] for what in ("grid", "block") for axis in "xyz"] == [557496, 2, 1, 128, 1, 4]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (None, {"device": None, "stream": None, "correlation": None, "grid_x": None, "bytes": None}),
        ({}, {"device": None, "stream": None, "correlation": None, "grid_x": None, "bytes": None}),
        ({"stream": "7", "correlation": "12"}, {"stream": 7, "correlation": 12}),
        (
            {"stream": "stream 7", "correlation": "", "bytes": "N/A"},
            {"stream": None, "correlation": None, "bytes": None},
        ),
        ({"grid": "[1, 2, 3]", "block": ""}, {"grid_x": None, "block_x": None}),
        ({"memory bandwidth (GB/s)": "N/A", "bytes": 4}, {"bytes": 4}),
        ({"grid": [2**40, 1, 1], "device": 2**40}, {"grid_x": None, "device": None}),
    ],
)
def test_arguments_that_are_missing_or_of_a_wrong_type(
    args: dict[str, Any] | None, expected: dict[str, Any], tmp_path: Path
) -> None:
    event = span("kernel") if args is None else span("kernel", args=args)
    row = load_events(tmp_path, event).kernels.row(0, named=True)
    assert {key: row[key] for key in expected} == expected


def test_shapes_are_kept_as_recorded(tmp_path: Path) -> None:
    args = {"Input Dims": [[2, 3], [], [[1], [4]]], "Input type": ["c10::BFloat16", "Scalar", ""]}
    ops = load_events(tmp_path, span(args=args), span(ts=2, args={"External id": 4}), span(ts=3)).ops
    assert json.loads(ops["input_dims"][0]) == args["Input Dims"]
    assert json.loads(ops["input_types"][0]) == args["Input type"]
    assert ops["input_dims"].to_list()[1:] == [None, None]
    assert ops["input_types"].to_list()[1:] == [None, None]


@pytest.mark.parametrize(
    "bad",
    [
        span(ts="soon"),
        span(ts=None),
        span(dur=[1]),
        span(name=7),
        span(cat=None),
        span(args=[1]),
        span("kernel", args={"grid": [[1]]}),
        span("kernel", args={"grid": []}),
        span("kernel", args={"grid": [5, 6]}),
        span("kernel", args={"block": [1, 2, 3, 4]}),
        span("kernel", args={"correlation": 18446744073709551615}),
        span("kernel", args={"bytes": -(10**25)}),
        span(ts=1e30),
        span(dur=1e300),
        span(ts=-1e17),
        {"ph": 3, "name": "n"},
        {"name": "no ph"},
        {},
    ],
)
def test_an_event_of_wrong_types_costs_that_event_only(bad: dict[str, Any], tmp_path: Path) -> None:
    trace = load_events(tmp_path, span(name="a"), bad, span(name="b", ts=2))
    assert trace.ops["name"].to_list() == ["a", "b"]
    assert trace.kernels.height == 0
    damage = [warning for warning in trace.warnings if warning.code == "damaged-events"]
    assert [(warning.count, warning.spoils_totals) for warning in damage] == [(1, True)]


@pytest.mark.parametrize("bad", ['"NaN"', '"Infinity"', "1e999999", '"sNaN"'])
def test_a_time_that_is_no_time_costs_that_event_only(bad: str, tmp_path: Path) -> None:
    trace = load_text(tmp_path, spelled("1712195495519689.047", bad, "1712195495519689.049"))
    assert trace.ops["start_ns"].to_list() == [0, 2]
    assert [warning.code for warning in trace.warnings] == ["damaged-events"]


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity"])
def test_bare_words_of_javascript_cost_that_event_only(token: str, tmp_path: Path) -> None:
    trace = load_text(tmp_path, spelled("1", token, "3"))
    assert times(trace.ops) == [(0, 1_000), (2_000, 1_000)]
    assert [warning.code for warning in trace.warnings] == ["damaged-events"]


def test_bad_events_among_good_ones_are_counted_and_the_good_ones_kept_together() -> None:
    columns = Columns()
    good = b'{"ph": "X", "cat": "kernel", "name": "k", "ts": %d, "dur": 1}'
    columns.take_each([good % n if n % 2 else b'{"ph": "X", "name": "\\x"}' for n in range(1, 2001)])
    assert (columns.event_count, columns.rejected) == (1000, 1000)
    assert columns.tables()["kernels"]["start_ns"].to_list() == [n * 1000 for n in range(0, 2000, 2)]


def test_rocm_s_launches_keep_the_name_of_their_kernel(tmp_path: Path) -> None:
    names: list[Any] = ["gemm", None, 7, ["odd"], {"odd": 1}]
    rows = [span("cuda_runtime", name="hipLaunchKernel", args={"correlation": 1, "kernel": name}) for name in names]
    trace = load_events(tmp_path, *rows, span("cuda_runtime", name="cudaLaunchKernel", args={"correlation": 2}))
    assert trace.launches["kernel"].to_list() == ["gemm", None, None, None, None, None]
    assert trace.warnings == ()


def test_what_collectives_tell_of_themselves(tmp_path: Path) -> None:
    told = {"Process Group Name": "7", "Process Group Ranks": "[0, 1]", "Group size": 2}
    built = Kineto()
    rows: list[dict[str, object]] = [
        {**told, "Collective name": "all_to_all", "In msg nelems": 6144, "dtype": "BFloat16"},
        {**told, "In msg nelems": 10, "dtype": "a type to come"},
        {**told, "In msg nelems": -1, "dtype": "Float", "Group size": "two"},
        {**told, "In msg nelems": 1 << 62, "dtype": "Float", "Group size": 1 << 40},
        {
            "Collective name": ["odd"],
            "Process Group Name": ["odd"],
            "Process Group Ranks": {},
            "In msg nelems": [],
            "dtype": 3,
        },
        {},
    ]
    for at, args in enumerate(rows, start=1):
        built.span("kernel", "ncclDevKernel", at, 1, args={"device": 0, "stream": 7, **args})
    kernels = load(built.save(tmp_path / "trace.json")).kernels
    assert kernels["group"].cast(pl.String).to_list() == [*["7 [0, 1]"] * 4, None, None]
    assert kernels["collective"].cast(pl.String).to_list() == ["all_to_all", *[None] * 5]
    assert kernels["group_size"].to_list() == [2, 2, None, None, None, None]
    assert kernels["message_bytes"].to_list() == [12_288, None, None, None, None, None]
