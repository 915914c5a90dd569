"""Time what torch's profiler costs a step on the host: ``python benchmarks/bench_profiler.py``.

The laboratory's decode step, eager and so bound by the host, and as a graph, with each way of profiling it in turns in
one process, the first time before anything was profiled. Beside each time stand the rows per step that the trace got,
so that the cost of a row of each kind follows from differences, as ``costs`` has them.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile

from stepscope.lab.config import LabConfig
from stepscope.lab.engine import Engine, device_of
from stepscope.lab.truth import this_machine
from stepscope.lab.weights import make_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CPU, CUDA = ProfilerActivity.CPU, ProfilerActivity.CUDA
WAYS: Mapping[str, dict[str, Any] | None] = {
    "none": None,
    "ops": {"activities": [CPU]},
    "gpu": {"activities": [CUDA]},
    "both": {"activities": [CPU, CUDA]},
    "shapes": {"activities": [CPU, CUDA], "record_shapes": True},
    "stacks": {"activities": [CPU, CUDA], "with_stack": True},
    "all": {"activities": [CPU, CUDA], "record_shapes": True, "with_stack": True, "with_modules": True},
}
"""How the step is profiled. Calls of CUDA are recorded with all of them, kernels not with `ops`."""
CASES: Mapping[str, dict[str, Any]] = {
    "eager": {"graph": False},
    "eager, unfused norms": {"graph": False, "slowdown": "unfused-norms"},
    "graph": {"graph": True},
}
ROUNDS = 8
WARM_UP = 3
STEPS = 8
KINDS = ("cpu_op", "cuda_runtime", "cuda_driver", "kernel", "python_function")
COSTS = {
    "an op": ("both", "gpu", "cpu_op"),
    "a kernel's row": ("both", "ops", "kernel"),
    "a kernel's row and its launch's": ("gpu", "none", "kernel"),
    "an op's shapes": ("shapes", "both", "cpu_op"),
    "a frame": ("stacks", "both", "python_function"),
}
"""By what it is the cost of: the way with it, the way without, and the rows that it is divided by."""


def measure(engine: Engine, how: dict[str, Any] | None) -> dict[str, Any]:
    """Return medians of one burst of steps, and the rows per step that the trace got."""
    engine.reset()
    gc.collect()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]  # type: ignore[no-untyped-call]
    host = []
    torch.cuda.synchronize()
    with profile(**how) if how else nullcontext() as profiler:
        for _ in range(WARM_UP):
            engine.step()
        events[0].record()
        host.append(time.perf_counter())
        for event in events[1:]:
            engine.step()
            event.record()
            host.append(time.perf_counter())
        torch.cuda.synchronize()
    row: dict[str, Any] = {
        "step_us": round(statistics.median(1e3 * a.elapsed_time(b) for a, b in pairwise(events)), 1),
        "host_us": round(statistics.median(1e6 * (b - a) for a, b in pairwise(host)), 1),
    }
    return row if profiler is None else {**row, "rows_per_step": _rows(profiler)}


def _rows(profiler: profile) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        text = path.read_bytes()
    return {kind: round(text.count(b'"cat": "%b"' % kind.encode()) / (WARM_UP + STEPS), 1) for kind in KINDS}


def costs(rows: Sequence[dict[str, Any]], case: str) -> Iterator[dict[str, Any]]:
    """Yield what a row of each kind costs the host in µs.

    Other work of the host only ever adds to a burst, in long spells: `us` is from the least bursts of both ways, and
    `paired_us` has the quartiles over rounds of the difference within a round.
    """
    by_way: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for row in sorted(rows, key=lambda row: row["round"]):
        if row["case"] == case:
            by_way[row["way"]].append(row)
    for name, (with_it, without, kind) in COSTS.items():
        times = [[row["step_us"] for row in by_way[way]] for way in (with_it, without)]
        count = by_way[with_it][0]["rows_per_step"][kind]
        each = [(slow - fast) / count for slow, fast in zip(*times, strict=True)]
        paired = statistics.quantiles(each, n=4, method="inclusive")
        least = (min(times[0]) - min(times[1])) / count
        yield {"case": case, "of": name, "us": round(least, 2), "paired_us": [round(us, 2) for us in paired]}


def main() -> None:
    """Print one JSON document."""
    device = device_of("cuda")
    base = LabConfig()
    weights = make_weights(base.spec(), base.tp_slice, device, torch.bfloat16, seed=base.seed)
    rows = []
    for case, changed in CASES.items():
        engine = Engine(LabConfig(**changed), device=device, weights=weights)
        engine.step()
        engine.reset()
        engine.capture()
        for turn in range(ROUNDS):
            ways = list(WAYS)[:: 1 if turn % 2 == 0 else -1]
            for way in ways:
                rows.append({"case": case, "round": turn, "way": way, **measure(engine, WAYS[way])})
                sys.stderr.write(f"{rows[-1]}\n")
    eager = [case for case in CASES if not CASES[case]["graph"]]
    result = {
        "machine": {name: getattr(this_machine(device), name) for name in ("gpu", "driver", "cuda", "torch", "python")},
        "steps": STEPS,
        "costs": [cost for case in eager for cost in costs(rows, case)],
        "rows": rows,
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
