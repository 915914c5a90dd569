"""Measure how long traces take to load and to diagnose, beside other readers, each in a process of its own.

    python benchmarks/bench_load.py            # 50 MB and 500 MB
    python benchmarks/bench_load.py 5GB        # any sizes that generate_trace.py makes

Writes `benchmarks/results/load.json` and the table `load.md`. Every case runs `RUNS` times, the cases in turn, so that
a machine whose speed drifts slows all; the table has medians. Memory is the largest resident set of the process,
imports included. Peers that are not installed are left out (`pip install orjson traceinsight`).
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from generate_trace import parse_size, write_trace

RUNS = 3
RESULTS = Path(__file__).parent / "results"
GIGABYTE = 10**9


@dataclass(frozen=True)
class Case:
    """One way to read a trace: Python code that finds the file's path in `path`."""

    name: str
    code: str
    needs: str | None = None
    """A module without which the case is left out."""
    compressed: bool = False
    largest: int = GIGABYTE
    """Bytes from which on it would need more memory or patience than there is."""


CASES = (
    Case("stepscope.load", "import stepscope; stepscope.load(path)", largest=10 * GIGABYTE),
    Case("stepscope.load, gzip", "import stepscope; stepscope.load(path)", compressed=True),
    Case("stepscope.diagnose", "import stepscope; stepscope.diagnose([path])", largest=10 * GIGABYTE),
    Case(
        "stepscope.diagnose, again (cache)",
        "import stepscope; from stepscope.pipeline.load import Cache; stepscope.diagnose([path], cache=Cache())",
        largest=10 * GIGABYTE,
    ),
    Case("read only", "f = open(path, 'rb')\nwhile f.read(1 << 20): pass", largest=10 * GIGABYTE),
    Case("json.load", "import json; json.load(open(path))"),
    Case("orjson.loads", "import orjson; orjson.loads(open(path, 'rb').read())", needs="orjson"),
    Case(
        "traceinsight (HTA)",
        "from hta.common.trace import Trace\n"
        "Trace(trace_files={0: path}, trace_dir='.').parse_traces(use_multiprocessing=False)",
        needs="hta",
    ),
)


def measure(case: Case, path: Path) -> tuple[float, float] | None:
    """Return seconds and the process's largest resident set in MB; None where it fails."""
    begin = time.perf_counter()
    process = subprocess.Popen(  # noqa: S603 -- our own code
        [sys.executable, "-c", f"path = {str(path)!r}\n{case.code}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - begin
    return (seconds, usage.ru_maxrss / 1e3) if process.returncode == 0 else None


def run(size: int, folder: Path) -> list[dict[str, Any]]:
    """Measure every case on a trace of a size."""
    plain, packed = folder / "trace.json", folder / "trace.json.gz"
    with plain.open("wb", buffering=1 << 20) as stream:
        write_trace(stream, size)
    if size < GIGABYTE:
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as target:
            shutil.copyfileobj(source, target)
    cases = [
        case for case in CASES if size <= case.largest and (not case.needs or importlib.util.find_spec(case.needs))
    ]
    taken: dict[str, list[tuple[float, float]]] = {case.name: [] for case in cases}
    for number in range(RUNS):
        for case in cases:
            result = measure(case, packed if case.compressed else plain)
            sys.stderr.write(f"{plain.stat().st_size / 1e6:,.0f} MB, run {number + 1}, {case.name}: {result}\n")
            if result is not None:
                taken[case.name].append(result)
    return [
        {
            "case": name,
            "trace_bytes": plain.stat().st_size,
            "seconds": [round(seconds, 3) for seconds, _ in results],
            "peak_mb": round(max(memory for _, memory in results)),
        }
        for name, results in taken.items()
        if results
    ]


def table(document: dict[str, Any]) -> str:
    """Return the results as Markdown, times beside orjson's where it ran."""
    used = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    lines = [
        f"Measured {document['date']} on {document['machine']} with {document['runs']} runs a case, in turn; {used}.",
        "",
        "| trace | case | seconds (median) | of json.load | peak MB | of the file |",
        "|---|---|---|---|---|---|",
    ]
    for row in document["rows"]:
        median = statistics.median(row["seconds"])
        reference = [r for r in document["rows"] if (r["case"], r["trace_bytes"]) == ("json.load", row["trace_bytes"])]
        share = f"{median / statistics.median(reference[0]['seconds']):.2f}" if reference else "n/a"
        size = row["trace_bytes"] / 1e6
        memory = f"{row['peak_mb']:,} | {row['peak_mb'] / size:.2f}"
        lines.append(f"| {size:,.0f} MB | {row['case']} | {median:.2f} | {share} | {memory} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read the command line, measure, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sizes", nargs="*", type=parse_size, default=[parse_size("50MB"), parse_size("500MB")])
    arguments = parser.parse_args()
    rows = []
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder  # the cache of this trace goes with it
            rows += run(size, Path(folder))
    installed = [name for name in ("stepscope", "msgspec", "polars", "isal", "orjson", "traceinsight") if _has(name)]
    document = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "runs": RUNS,
        "versions": {name: version(name) for name in installed},
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "load.json").write_text(json.dumps(document, indent=2) + "\n")
    (RESULTS / "load.md").write_text(table(document))


def _has(name: str) -> bool:
    try:
        version(name)
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    main()
