"""Real traces load whole: every count is worked out anew with the `json` module."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from stepscope import load

REPOSITORY = Path(__file__).parents[3]
TRACES = REPOSITORY.parent / "shared" / "traces"
NO_TRACE = "benchmark_simple_add_et.json.gz"
"""A PyTorch execution trace, which is something else."""

FILES = sorted(path for path in TRACES.rglob("*.json.gz") if path.name != NO_TRACE)

TABLE_OF = {
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"), "kernels"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime"), "launches"),
    **dict.fromkeys(("cpu_op", "Operator"), "ops"),
    "user_annotation": "annotations",
    "python_function": "frames",
}


def table_of(event: dict[str, object]) -> str | None:
    if event.get("ph") != "X":
        return None
    if event.get("cat") == "Operator" and str(event.get("name")).startswith("ProfilerStep#"):
        return "annotations"
    return TABLE_OF.get(str(event.get("cat")))


@pytest.mark.skipif(not FILES, reason="the real traces lie beside the repository, in shared/traces, and are not there")
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TRACES)))
def test_a_real_trace_loads_whole(path: Path) -> None:
    document = json.loads(gzip.decompress(path.read_bytes()), strict=False)
    events = document["traceEvents"] if isinstance(document, dict) else document
    expected = Counter(table for event in events if (table := table_of(event)))
    spans = [event for event in events if table_of(event)]

    trace = load(path)
    assert trace.event_count == len(events)
    assert trace.warnings == ()
    names = ("kernels", "launches", "ops", "annotations", "frames")
    assert {name: getattr(trace, name).height for name in names} == {name: expected[name] for name in names}

    durations = sum(round(max(event.get("dur", 0), 0) * 1000) for event in spans)
    assert sum(int(getattr(trace, name)["duration_ns"].sum()) for name in names) == durations
    correlations = Counter(event.get("args", {}).get("correlation") for event in spans if table_of(event) == "kernels")
    assert Counter(trace.kernels["correlation"].to_list()) == correlations
