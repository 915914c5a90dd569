"""Files to traces: what a file tells besides its events, which files a path names, and every layout of JSON."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kineto import Kineto

from stepscope import load
from stepscope.errors import NotATraceError, UsageError
from stepscope.pipeline.load import find_traces, scanner

if TYPE_CHECKING:
    from pathlib import Path


def one_op(**header: Any) -> Kineto:
    trace = Kineto(device=None, **header)
    trace.op("aten::add", 1, 1)
    return trace


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("trace.json", None),
        ("1712-TP-3.trace.json.gz", 3),
        ("rank3.json", 3),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34),
        ("inference_rank_1.json.gz", 1),
        ("dp0_pp0_tp0_dcp0_ep0_rank0.1773.pt.trace.json.gz", 0),
        ("graph_capture_rank_0.1773709742341309550.pt.trace.json.gz", 0),
        ("frank3.json", None),
        ("crank_7_handle.json", None),
    ],
)
def test_the_rank_stands_in_the_name(name: str, rank: int | None, tmp_path: Path) -> None:
    assert load(one_op().save(tmp_path / name)).rank == rank


def test_the_header_tells_the_rank_better_than_the_name(tmp_path: Path) -> None:
    trace = one_op(distributedInfo={"backend": "nccl", "rank": 5, "world_size": 8})
    assert load(trace.save(tmp_path / "rank3.json")).rank == 5


@pytest.mark.parametrize("info", [None, {}, [], {"rank": "unknown"}, {"rank": None}, 7])
def test_a_header_without_a_rank_leaves_it_to_the_name(info: Any, tmp_path: Path) -> None:
    assert load(one_op(distributedInfo=info).save(tmp_path / "rank3.json")).rank == 3


A, B = {"id": 0, "name": "NVIDIA H200"}, {"id": 1, "name": "NVIDIA H100"}


@pytest.mark.parametrize(
    ("devices", "used", "name"),
    [
        ([A], 0, "NVIDIA H200"),
        ([A, B], 1, "NVIDIA H100"),
        ([A, {**B, "name": "NVIDIA H200"}], 0, "NVIDIA H200"),
        ([A], 9, "NVIDIA H200"),
        ([A, B], 9, None),
        ([{"id": 0, "name": ""}], 0, None),
        ([{"id": 0}], 0, None),
        ([], 0, None),
        (None, 0, None),
        ("H200", 0, None),
        (["H200", 3], 0, None),
    ],
)
def test_the_device_is_the_one_in_use(devices: Any, used: int, name: str | None, tmp_path: Path) -> None:
    trace = Kineto(device=None, deviceProperties=devices)
    trace.kernel("k", 1, 1, device=used)
    assert load(trace.save(tmp_path / "t.json")).device_name == name


def test_keys_after_the_events_count_as_much_as_keys_before(tmp_path: Path) -> None:
    document = one_op().document()
    events = document.pop("traceEvents")
    text = json.dumps({"traceEvents": events, **document, "distributedInfo": {"rank": 2}, "deviceProperties": [A]})
    path = tmp_path / "t.json"
    path.write_text(text)
    trace = load(path)
    assert (trace.rank, trace.device_name, trace.header["schemaVersion"]) == (2, "NVIDIA H200", 1)
    assert trace.warnings == ()


def test_a_damaged_trailer_costs_no_event(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(one_op().document())[:-1] + ', "metadata": {"a" 1}}')
    trace = load(path)
    assert (trace.ops.height, trace.event_count, trace.warnings) == (1, 1, ())


@pytest.mark.parametrize("between", ["", "\n"])
@pytest.mark.parametrize("as_list", [False, True], ids=["objects", "lists"])
def test_a_second_trace_in_the_same_file_is_told(between: str, tmp_path: Path, *, as_list: bool) -> None:
    document = one_op().events if as_list else one_op().document()
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document) + between + json.dumps(document))
    trace = load(path)
    assert trace.ops.height == 1
    assert [(warning.code, warning.spoils_totals) for warning in trace.warnings] == [("second-trace", False)]


def test_a_list_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(one_op().events))
    trace = load(path)
    assert (trace.event_count, trace.header, trace.rank, trace.device_name) == (1, {}, None, None)


def test_a_cut_file_keeps_the_events_before_the_cut_and_says_so(tmp_path: Path) -> None:
    trace = Kineto()
    for start in range(50):
        trace.op("aten::add", start, 1)
    text = json.dumps(trace.document())
    path = tmp_path / "t.json"
    path.write_text(text[: text.index('"ts": 30,')])
    cut = load(path)
    assert cut.event_count == cut.ops.height == 30
    assert [(warning.code, warning.spoils_totals) for warning in cut.warnings] == [("cut-file", True)]


def test_a_cut_gzip_file_warns_of_the_gzip_and_of_the_events(tmp_path: Path) -> None:
    trace = Kineto()
    for start in range(3000):
        trace.op(f"aten::op{start * 7919 % 1000}", start, 1)
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace.document()).encode())[:-2000])
    cut = load(path)
    assert 100 < cut.ops.height < 3000
    assert {warning.code for warning in cut.warnings} == {"damaged-compression", "cut-file"}
    assert all(warning.spoils_totals for warning in cut.warnings)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schema": "1.0", "nodes": []}', "execution trace"),
        ('{"schema_version": 1, "tool": {}}', "stepscope document"),
        ('{"architectures": [], "hidden_size": 1}', "architectures, hidden_size"),
        ("{}", "none"),
        ('{"traceEvents": []}', "empty"),
        ("[]", "empty"),
        ("[1, 2, 3]", "no trace events"),
        ('{"traceEvents": {}}', "traceEvents"),
        ("{{{{", "traceEvents"),
        ('{"a": nonsense, "traceEvents": [{"ph": "X"}]}', "damaged"),
        ("[" * 100_000, "trace events"),
        ('{"a":' * 100_000, "traceEvents"),
    ],
)
def test_json_that_is_no_trace_is_refused(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(NotATraceError, match=says) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be opened"):
        load(tmp_path / "missing.json")


def test_the_size_is_that_of_the_file_as_it_lies_on_disk(tmp_path: Path) -> None:
    path = one_op().save(tmp_path / "t.json.gz")
    assert load(path).file_bytes == len(path.read_bytes())


class TestFindTraces:
    def test_a_folder_stands_for_the_traces_in_it(self, tmp_path: Path) -> None:
        wanted = [tmp_path / "a.json", tmp_path / "deep" / "er" / "b.pt.trace.json.gz", tmp_path / "z.json.zst"]
        for path in [*wanted, tmp_path / "notes.txt", tmp_path / "deep" / "json", tmp_path / "c.json.bz2"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        (tmp_path / "folder.json").mkdir()
        assert find_traces(tmp_path) == list(map(str, wanted))

    def test_a_file_is_taken_whatever_its_name(self, tmp_path: Path) -> None:
        path = tmp_path / "trace"
        path.touch()
        assert find_traces(path) == find_traces(str(path)) == [str(path)]

    def test_a_missing_path_is_wrong_usage(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no such file"):
            find_traces(tmp_path / "missing")

    def test_a_folder_without_a_trace_says_what_was_looked_for(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").touch()
        with pytest.raises(NotATraceError, match=r"holds no trace .*\.json\.gz"):
            find_traces(tmp_path)


TABLE_OF = {
    "kernel": "kernels",
    "gpu_memset": "kernels",
    "cuda_driver": "launches",
    "cpu_op": "ops",
    "user_annotation": "annotations",
    "python_function": "frames",
    "gpu_user_annotation": None,
}

nanoseconds = st.integers(0, 10**12)
json_text = st.text(st.characters(codec="utf-8"), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | json_text, lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


@st.composite
def event(draw: st.DrawFn) -> dict[str, Any]:
    """A span with times of whole ns, or another phase; its keys in any order, and with keys that nobody knows."""
    if draw(st.integers(0, 4)) == 0:
        return {
            "ph": draw(st.sampled_from("isfMC")),
            "name": draw(json_text),
            "ts": 0,
            "args": {"x": draw(json_values)},
        }
    keys = {
        "ph": "X",
        "cat": draw(st.sampled_from(sorted(TABLE_OF))),
        "name": draw(json_text),
        "pid": draw(st.integers(0, 3) | st.just("Spans")),
        "tid": draw(st.integers(0, 3) | st.just("stream 7")),
        "ts": draw(nanoseconds.map(lambda ns: (ns + 1) / 1000)),
        "dur": draw(nanoseconds.map(lambda ns: ns / 1000)),
        "args": {"own": draw(json_values), "nested": [{"a": 1}, {"b": draw(json_text)}]},
    }
    return {key: keys[key] for key in draw(st.permutations(sorted(keys)))}


layouts = st.fixed_dictionaries(
    {
        "indent": st.sampled_from([None, 0, 1, 4]),
        "separators": st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " : ")]),
        "ensure_ascii": st.booleans(),
    }
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.lists(event(), min_size=1, max_size=12),
    layout=layouts,
    wrap=st.sampled_from(["list", "before", "after", "both"]),
    chunk=st.sampled_from([1, 200, 1 << 20]),
)
def test_any_layout_of_any_events_loads(
    events: list[dict[str, Any]], layout: dict[str, Any], wrap: str, chunk: int, tmp_path: Path
) -> None:
    before = {"schemaVersion": 1, "x": [{"a": "]"}, {}]} if wrap in {"before", "both"} else {}
    after = {"traceName": "a}, {b", "y": [{"b": 2}, {"c": 3}]} if wrap in {"after", "both"} else {}
    document = events if wrap == "list" else {**before, "traceEvents": events, **after}
    path = tmp_path / "trace"
    path.write_bytes(json.dumps(document, **layout).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanner, "CHUNK_BYTES", chunk)
        trace = load(path)

    assert trace.event_count == len(events)
    assert trace.warnings == ()
    assert dict(trace.header) == ({} if wrap == "list" else {**before, **after})
    kept = [event for event in events if event["ph"] == "X" and TABLE_OF[event["cat"]]]
    origin = min((round(event["ts"] * 1000) for event in kept), default=0)
    for name in ("kernels", "launches", "ops", "annotations", "frames"):
        expected = sorted(
            (round(event["ts"] * 1000) - origin, round(event["dur"] * 1000), event["name"])
            for event in kept
            if TABLE_OF[event["cat"]] == name
        )
        assert sorted(getattr(trace, name).select("start_ns", "duration_ns", "name").rows()) == expected


def test_a_byte_order_mark_before_the_header_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("\ufeff" + json.dumps(one_op().document()), "utf-8")
    assert load(path).event_count == 1
