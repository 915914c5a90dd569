"""Measure on one core how long kernels take to be linked, classified, grouped and listed, once a trace is in memory.

    taskset -c 0 env POLARS_MAX_THREADS=1 python benchmarks/bench_link.py

The trace has 2.4 M events: kernels, launches, ops and frames, nested as those of a server, calls in one process without
graphs, which is the worst case: each kernel has its own launch, op and stack. It is built as tables, so that reading a
file takes no part. Writes `benchmarks/results/link.json` and the table `link.md`; every stage runs `RUNS` times.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.pipeline.attribute import attribute
from stepscope.pipeline.link import innermost, link, parents
from stepscope.pipeline.op_groups import list_ops
from stepscope.pipeline.steps import find_steps
from stepscope.trace import Trace
from stepscope.trace.schema import TABLES, polars_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

RUNS = 3
RESULTS = Path(__file__).parent / "results"
EVENTS = 2_400_000
CALLS_A_STEP = 3000
OPS, FRAMES = 3, 7
"""Nested around each launch, the frames around the ops."""
PERIOD = 30_000
"""ns from one launch to the next."""


def nested_trace(events: int) -> Trace:
    """Return a trace of about so many events: in each call frames hold ops, which hold a launch; a kernel follows."""
    calls = events // (2 + OPS + FRAMES)
    begin = np.arange(calls, dtype=np.int64) * PERIOD
    number = np.arange(calls) % 37
    depth_step = PERIOD // (2 * (OPS + FRAMES + 2))

    def spans(levels: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
        level = np.array(levels, dtype=np.int64)
        start = (begin[:, None] + level * depth_step).ravel()
        length = np.tile(PERIOD - 1 - 2 * level * depth_step, calls)
        name = pl.Series(names, dtype=pl.Categorical)[np.arange(start.size) % len(names)]
        return {"start_ns": start, "duration_ns": length, "name": name, "thread": np.zeros(start.size, dtype=np.int32)}

    kernel_names = [
        f"void at::native::vectorized_elementwise_kernel<4, at::native::F{n}<float> >(int)" for n in range(37)
    ]
    shapes = pl.Series([f"[[{n}, 6144], [6144, 2048]]" for n in range(37)], dtype=pl.Categorical)
    ops = spans(range(FRAMES, FRAMES + OPS), ["aten::linear", "aten::matmul", "aten::mm"])
    ops["input_dims"] = shapes[np.repeat(number, OPS)]
    launches = spans([FRAMES + OPS], ["cudaLaunchKernel"])
    launches["correlation"] = np.arange(calls)
    kernels = {
        "start_ns": begin + PERIOD,
        "duration_ns": np.full(calls, PERIOD - 500),
        "name": pl.Series(kernel_names, dtype=pl.Categorical)[number],
        "kind": pl.Series(["kernel"] * calls, dtype=pl.Categorical),
        "device": np.zeros(calls, dtype=np.int32),
        "stream": np.full(calls, 7, dtype=np.int32),
        "correlation": np.arange(calls),
        **{f"grid_{axis}": np.ones(calls, dtype=np.int32) for axis in "xyz"},
        **{f"block_{axis}": np.full(calls, 128, dtype=np.int16) for axis in "xyz"},
    }
    first = begin[::CALLS_A_STEP]
    annotations = {
        "start_ns": first,
        "duration_ns": np.full(first.size, CALLS_A_STEP * PERIOD - 1),
        "name": pl.Series(["step[DECODE bs=1]"] * first.size, dtype=pl.Categorical),
        "thread": np.zeros(first.size, dtype=np.int32),
    }
    frames = spans(range(FRAMES), [f"model.py({10 * n}): f{n}" for n in range(FRAMES)])
    columns = {"kernels": kernels, "launches": launches, "ops": ops, "annotations": annotations, "frames": frames}
    tables = {name: _table(name, data) for name, data in columns.items()}
    return Trace(
        path="built",
        file_bytes=0,
        event_count=sum(table.height for table in tables.values()),
        **tables,  # type: ignore[arg-type] # the names are those of the tables' fields
        threads=(("1", "1"),),
        header={},
        rank=None,
        device_name=None,
    )


def _table(name: str, data: Mapping[str, Any]) -> pl.DataFrame:
    """Return a table with nulls in the columns that are not given."""
    given = pl.DataFrame(data)
    schema = polars_schema(TABLES[name])
    return given.select(
        (pl.col(column) if column in data else pl.lit(None)).cast(dtype).alias(column)
        for column, dtype in schema.items()
    )


def link_whole(trace: Trace) -> None:
    """Link kernels to launches and ops, launches and ops to their frames, and ops and frames to their parents."""
    link(trace)
    for inner in (trace.launches, trace.ops):
        innermost(*_spans(trace.frames), inner["thread"].to_numpy(), inner["start_ns"].to_numpy())
    for table in (trace.ops, trace.frames):
        parents(*_spans(table))


def _spans(table: pl.DataFrame) -> tuple[Ints, Ints, Ints]:
    start = table["start_ns"].to_numpy()
    return table["thread"].to_numpy(), start, start + table["duration_ns"].to_numpy()


def measure(events: int) -> dict[str, Any]:
    """Return the seconds that each stage takes on a trace of so many events."""
    trace = nested_trace(events)
    linked = link(trace)
    steps = find_steps(linked)
    stages: dict[str, Callable[[], object]] = {
        "link: kernel → launch → op": lambda: link(trace),
        "link, frames and parents of all": lambda: link_whole(trace),
        "steps": lambda: find_steps(linked),
        "attribute: classes and groups": lambda: attribute(linked, steps),
        "ops": lambda: list_ops(linked, steps),
        "ops --name '*'": lambda: list_ops(linked, steps, "*"),
        "(numpy.sort of as many numbers)": lambda: np.sort(np.random.default_rng(0).integers(0, 1 << 62, events)),
    }
    taken: dict[str, list[float]] = {name: [] for name in stages}
    for _ in range(RUNS):
        for name, stage in stages.items():
            begin = time.perf_counter()
            stage()
            taken[name].append(round(time.perf_counter() - begin, 3))
    return {"events": trace.event_count, "seconds": taken}


def table(document: Mapping[str, Any]) -> str:
    """Return the results as Markdown."""
    used = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    lines = [
        f"Measured {document['date']} on one core of {document['machine']}: {document['events']:,} events; {used}.",
        "",
        "| stage | seconds (median) |",
        "|---|---|",
        *(f"| {name} | {statistics.median(runs):.2f} |" for name, runs in document["seconds"].items()),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("events", nargs="?", type=int, default=EVENTS)
    events = parser.parse_args().events
    if pl.thread_pool_size() > 1:
        parser.error("set POLARS_MAX_THREADS=1: the figure is of one core")
    document = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("stepscope", "numpy", "polars")},
        **measure(events),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "link.json").write_text(json.dumps(document, indent=2) + "\n")
    (RESULTS / "link.md").write_text(table(document))


if __name__ == "__main__":
    main()
