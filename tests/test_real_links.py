"""Kernels, launches, ops and graphs of real traces, counted again with plain JSON and loops over the file's events."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from stepscope import load, pipeline
from stepscope.pipeline.attribute import classes
from stepscope.pipeline.attribute.join import Donor, join
from stepscope.pipeline.link import link

TRACES = Path(__file__).parents[2] / "shared" / "traces"
NO_TRACE = "/execution_trace/"
NO_GPU = ("/cpu_only/", "/rank_unavailable/", "vllm-cpu/")
ALL = [
    path
    for path in sorted(file.relative_to(TRACES).as_posix() for file in TRACES.rglob("*.json.gz"))
    if NO_TRACE not in path and not any(part in path for part in NO_GPU)
]
LAB, SGLANG, PUBLIC = "h200-decode", "sglang-h200", "public/TraceLens/inference"
QWEN = (
    f"{PUBLIC}/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
    f"{PUBLIC}/sglang_decode/capture_traces/bs_32_rank0.json.gz",
)
VLLM = (
    f"{PUBLIC}/vllm_decode_full/graph_execution.json.gz",
    f"{PUBLIC}/vllm_decode_full/graph_capture_rank_0.1773709742341309550.pt.trace.json.gz",
)
SGLANG_GRAPH = f"{SGLANG}/flashinfer-fp8-graph.trace.json.gz"
SGLANG_CAPTURE = f"{SGLANG}/flashinfer-fp8-graph-capture.trace.json.gz"
SGLANG_EAGER = f"{SGLANG}/flashinfer-fp8-eager-stacks.trace.json.gz"
LAB_EAGER = f"{LAB}/eager-cast-stacks.json.gz"

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside the repository")

Event = dict[str, Any]
GPU = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
LAUNCH = {"cuda_runtime", "cuda_driver", "Runtime"}
OP = {"cpu_op", "Operator"}


@dataclass
class Raw:
    """A trace's spans as the file has them, in order of time."""

    gpu: list[Event] = field(default_factory=list)
    launches: list[Event] = field(default_factory=list)
    ops: list[Event] = field(default_factory=list)
    annotations: list[Event] = field(default_factory=list)

    @cached_property
    def launch_of(self) -> dict[int | None, Event]:
        """The first launch of each correlation."""
        first: dict[int | None, Event] = {}
        for launch in self.launches:
            if correlation(launch) is not None:
                first.setdefault(correlation(launch), launch)
        return first

    @cached_property
    def op_of_launch(self) -> dict[int, Event]:
        """The innermost op around each launch, by walking the stack of each thread; keyed by `id(launch)`."""
        events: dict[tuple[str, str], list[tuple[float, int, float, Event]]] = defaultdict(list)
        for op in self.ops:
            events[thread(op)].append((float(op["ts"]), 0, -float(op["dur"]), op))
        for launch in self.launches:
            events[thread(launch)].append((float(launch["ts"]), 1, 0.0, launch))
        found: dict[int, Event] = {}
        for of_thread in events.values():
            stack: list[Event] = []
            for at, is_launch, _, event in sorted(of_thread, key=lambda row: row[:3]):
                while stack and float(stack[-1]["ts"]) + float(stack[-1]["dur"]) <= at:
                    stack.pop()
                if not is_launch:
                    stack.append(event)
                elif stack:
                    found[id(event)] = stack[-1]
        return found

    def op_of(self, kernel: Event) -> Event | None:
        launch = self.launch_of.get(correlation(kernel))
        return None if launch is None else self.op_of_launch.get(id(launch))

    def op_name_of(self, kernel: Event) -> str | None:
        op = self.op_of(kernel)
        return None if op is None else str(op["name"])


@lru_cache(maxsize=2)  # they are large
def raw(path: str) -> Raw:
    document = json.loads(gzip.decompress((TRACES / path).read_bytes()).decode("utf-8", "replace"), strict=False)
    found = Raw()
    spans = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    for event in sorted(spans, key=lambda event: float(event["ts"])):
        category = event.get("cat")
        if category in GPU:
            found.gpu.append(event)
        elif category in LAUNCH:
            found.launches.append(event)
        elif category in OP and not event["name"].startswith("ProfilerStep#"):
            found.ops.append(event)
        elif category == "user_annotation":
            found.annotations.append(event)
    return found


def argument(event: Event, *names: str) -> int | None:
    told = event.get("args") or {}
    return next((int(told[name]) for name in names if str(told.get(name, "")).lstrip("-").isdigit()), None)


def correlation(event: Event) -> int | None:
    return argument(event, "correlation")


def external_id(event: Event) -> int | None:
    return argument(event, "External id", "external id")


def thread(event: Event) -> tuple[str, str]:
    return str(event["pid"]), str(event["tid"])


@pytest.mark.parametrize("path", ALL)
def test_launches_and_ops_are_found_by_correlation_alone(path: str) -> None:
    """Also: no `External id` tells an op where correlation tells none, so there is nothing to be had from it."""
    kernels = raw(path).gpu
    total = sum(float(kernel["dur"]) for kernel in kernels)
    launches, ops = raw(path).launch_of, {external_id(op) for op in raw(path).ops} - {None}
    launched = sum(float(kernel["dur"]) for kernel in kernels if correlation(kernel) in launches)
    with_op = sum(float(kernel["dur"]) for kernel in kernels if raw(path).op_of(kernel) is not None)
    linked = link(load(TRACES / path))
    duration = linked.kernels["duration_ns"].to_numpy()
    for column, us in (("launch", launched), ("op", with_op)):
        found = duration[linked.kernels[column].is_not_null().to_numpy()].sum()
        assert found / duration.sum() == pytest.approx(us / total, abs=1e-6)
    assert len(kernels) == linked.kernels.height
    for kernel in kernels:
        op, number = raw(path).op_of(kernel), external_id(kernel)
        if op is None:
            assert number not in ops
        else:
            assert number in {external_id(op), correlation(kernel), None}


@pytest.mark.parametrize("path", ALL)
def test_almost_every_kernel_is_of_a_known_class(path: str) -> None:
    kernels = link(load(TRACES / path)).kernels
    duration = kernels["duration_ns"].to_numpy()
    unknown = classes(kernels.select("name", "kind")) == "unclassified"
    assert duration[unknown].sum() <= 0.02 * duration.sum()


def replays(path: str, least: int) -> list[list[Event]]:
    """Return the kernels of each launch that started at least so many, in order of time."""
    by_launch: dict[int, list[Event]] = defaultdict(list)
    for kernel in raw(path).gpu:
        by_launch[correlation(kernel) or -1].append(kernel)
    return [kernels for kernels in by_launch.values() if len(kernels) >= least]


def by_stream(kernels: list[Event]) -> list[list[Event]]:
    streams: dict[int | None, list[Event]] = defaultdict(list)
    for kernel in kernels:
        streams[argument(kernel, "stream")].append(kernel)
    return list(streams.values())


def joined_ops(trace: str, donor: str) -> dict[int, str | None]:
    """Return the op's name of each kernel that the trace or its donor tells, keyed by `id(kernel)`."""
    result = join(link(load(TRACES / trace)), Donor.of(link(load(TRACES / donor))))
    kernels = result.linked.with_op_facts(result.linked.kernels)
    assert kernels["name"].to_list() == [kernel["name"] for kernel in raw(trace).gpu]
    return {id(kernel): op for kernel, op in zip(raw(trace).gpu, kernels["op_name"].to_list(), strict=True)}


def where(needle: list[Any], haystack: list[Any]) -> int:
    """Return where a sequence stands in another, the last time; -1 where it does not."""
    starts = range(len(haystack) - len(needle), -1, -1)
    return next((at for at in starts if haystack[at : at + len(needle)] == needle), -1)


@pytest.mark.parametrize(("pair", "size"), [(QWEN, 544), (VLLM, 421)])
def test_rocm_s_captured_launches_are_the_replay_in_order(pair: tuple[str, str], size: int) -> None:
    trace, capture = pair
    (replay,) = replays(trace, 100)
    ran = {correlation(kernel) for kernel in raw(capture).gpu}
    captured = [
        launch for launch in raw(capture).launches if "kernel" in launch["args"] and correlation(launch) not in ran
    ]
    names = [launch["args"]["kernel"] for launch in captured]
    at = where([kernel["name"] for kernel in replay], names)
    assert (len(replay), at >= 0) == (size, True)
    found = joined_ops(trace, capture)
    for kernel, launch in zip(replay, captured[at:], strict=False):
        op = raw(capture).op_of_launch.get(id(launch))
        assert found[id(kernel)] == (None if op is None else op["name"])


def test_sglang_s_warm_up_is_the_replay_stream_by_stream() -> None:
    warm_up = by_stream([kernel for kernel in raw(SGLANG_CAPTURE).gpu if kernel["cat"] in GPU])
    found = joined_ops(SGLANG_GRAPH, SGLANG_CAPTURE)
    whole = replays(SGLANG_GRAPH, 2000)
    assert [len(replay) for replay in whole] == [2390] * 5
    without_op = total = 0.0
    for replay in whole:
        streams = by_stream(replay)
        assert sorted(map(len, streams)) == [828, 1562]
        for stream in streams:
            kinds = [(kernel["name"], kernel["args"].get("grid")) for kernel in stream]
            places = [(where(kinds, [(k["name"], k["args"].get("grid")) for k in other]), other) for other in warm_up]
            at, donor = max(places, key=lambda place: place[0])
            assert at >= 0
            for kernel, twin in zip(stream, donor[at:], strict=False):
                op = raw(SGLANG_CAPTURE).op_name_of(twin)
                assert found[id(kernel)] == op
                total += kernel["dur"]
                without_op += kernel["dur"] if op is None else 0.0
    assert 1 - without_op / total == pytest.approx(0.970, abs=1e-3)


@pytest.mark.parametrize(
    ("trace", "twin", "kernels"),
    [
        (f"{LAB}/graph-cast.json.gz", LAB_EAGER, 2886),
        (f"{LAB}/graph-cast.json.gz", f"{LAB}/eager-cast.json.gz", 2886),
        (f"{LAB}/graph-gather.json.gz", f"{LAB}/eager-gather.json.gz", 2886),
        (SGLANG_GRAPH, SGLANG_EAGER, 2390),
    ],
)
def test_every_replayed_kernel_has_the_op_of_one_with_its_name_and_grid(trace: str, twin: str, kernels: int) -> None:
    ops_of: dict[tuple[str, str], set[str | None]] = defaultdict(set)
    for kernel in raw(twin).gpu:
        ops_of[kernel["name"], str(kernel["args"].get("grid"))].add(raw(twin).op_name_of(kernel))
    found = joined_ops(trace, twin)
    time = with_op = could = 0.0
    for replay in replays(trace, 2000):
        assert len(replay) == kernels
        for kernel in replay:
            known = ops_of[kernel["name"], str(kernel["args"].get("grid"))]
            op = found[id(kernel)]
            assert op in known | {None}
            time += kernel["dur"]
            with_op += kernel["dur"] if op is not None else 0.0
            could += kernel["dur"] if known - {None} else 0.0
    assert with_op / time >= (0.97 if trace == SGLANG_GRAPH else 0.99)
    assert with_op == pytest.approx(could, rel=1e-3)


@pytest.mark.parametrize(
    ("trace", "twin", "streams"),
    [(f"{LAB}/graph-cast.json.gz", LAB_EAGER, 1), (SGLANG_GRAPH, SGLANG_EAGER, 2)],
)
def test_modules_and_functions_of_the_twin_are_around_replayed_kernels(trace: str, twin: str, streams: int) -> None:
    result = join(link(load(TRACES / trace)), Donor.of(link(load(TRACES / twin))))
    joined = result.linked.kernels.filter(result.linked.kernels["donor_op"].is_not_null())
    assert joined["stream"].n_unique() == streams
    first = joined["correlation"][0]
    ops = joined.filter(joined["correlation"] == first)["donor_op"].to_list()
    modules = functions = 0
    frames = [
        (thread, start, start + length, str(name))
        for thread, start, length, name in result.linked.donor.frames.select(  # type: ignore[union-attr]
            "thread", "start_ns", "duration_ns", "name"
        ).iter_rows()
        if "nn.Module: " in str(name) or "): " in str(name)
    ]
    sample = ops[:: max(len(ops) // 10, 1)]
    for op in sample:
        start, length, on = result.linked.donor.ops.select("start_ns", "duration_ns", "thread").row(op)  # type: ignore[union-attr]
        around = [
            name for thread, low, high, name in frames if thread == on and low <= start and high >= start + length
        ]
        modules += any("nn.Module: " in name for name in around)
        functions += any("): " in name for name in around)
    assert functions == len(sample)
    assert modules >= 0.8 * len(sample)


@pytest.mark.parametrize("path", [LAB_EAGER, SGLANG_EAGER])
def test_the_list_of_copies_is_that_of_the_file(path: str) -> None:
    """Calls, calls per step and time of `aten::copy_`, by kernel and shapes, from the file's events."""
    steps = [step for step in raw(path).annotations if step["name"].startswith("step[")]
    begins = [float(step["ts"]) for step in steps]
    calls: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for kernel in raw(path).gpu:
        op = raw(path).op_of(kernel)
        if op is not None and op["name"] == "aten::copy_":
            launch = raw(path).launch_of[correlation(kernel)]
            step = sum(begin <= float(launch["ts"]) for begin in begins) - 1
            dims = json.dumps(op["args"]["Input Dims"])
            calls[kernel["name"], dims][step].append(float(kernel["dur"]))
    # the first step is left out of the figures per step where at least three remain
    steady = range(1 if len(steps) >= 4 else 0, len(steps))
    table = pipeline.ops(TRACES / path, name="aten::copy_")
    listed: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in table.drop_nulls("kernel").to_dicts():
        listed[row["kernel"], json.dumps(row["input_shapes"])].append(row)  # a row for each place in the code
    assert {group: sum(map(len, of_step.values())) for group, of_step in calls.items()} == {
        group: sum(row["calls"] for row in rows) for group, rows in listed.items()
    }
    once = [(group, rows[0]) for group, rows in listed.items() if len(rows) == 1]
    assert once
    for group, row in once:
        assert row["calls_per_step"] == median(len(calls[group][step]) for step in steady)
        assert row["time_us_per_step"] == pytest.approx(median(sum(calls[group][step]) for step in steady), abs=0.01)
    cast = table.row(0, named=True)
    assert (cast["kernel"], cast["calls_per_step"]) == (
        max(calls, key=lambda g: sum(map(sum, calls[g].values())))[0],
        78,
    )
    assert len(listed[cast["kernel"], json.dumps(cast["input_shapes"])]) == 1
