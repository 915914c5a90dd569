"""The command: ``python -m stepscope.paged_mla.bench --out benchmarks/results [--peers LABEL=FOLDER ...]``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton

from stepscope.paged_mla.bench.cases import CASES
from stepscope.paged_mla.bench.contenders import own, peer_versions, peers
from stepscope.paged_mla.bench.measure import accuracy, measure, measure_casts
from stepscope.paged_mla.bench.report import gates_of, markdown_of, rows_of

NO_DEVICE = 5
"""Exit code where a device does not do what it should."""


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="stepscope bench mla", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder for the results")
    parser.add_argument("--name", default="mla-h200", help="their file name, without suffix")
    parser.add_argument("--commit", default="unknown", help="what is measured")
    parser.add_argument(
        "--peers",
        action="append",
        default=[],
        metavar="LABEL=FOLDERS",
        help="packages of peers, as for PYTHONPATH; several versions one after another, the newest first",
    )
    parser.add_argument("--peers-into", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _driver() -> str:
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],  # noqa: S607 - found as users find it
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split("\n")[0].strip() or "unknown"


def _peers_elsewhere(folders: str) -> dict[str, Any]:
    # Two versions of a package cannot be imported at once: each set has a process of its own.
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "peers.json"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folders, os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, "-m", "stepscope.paged_mla.bench", "--peers-into", str(into)]
        subprocess.run(command, env=environment, check=True)  # noqa: S603 - this module
        found: dict[str, Any] = json.loads(into.read_text())
        return found


def _peers_here() -> dict[str, Any]:
    found = [m.to_json() for m in measure(peers(), CASES)]
    return {"versions": peer_versions(), "measured": found}


def main(argv: list[str] | None = None) -> int:
    """Measure, write the JSON and the table, print the table.

    Returns:
        0 if all gates pass, 1 if one does not, 5 without a GPU.
    """
    arguments = _arguments(argv)
    if not torch.cuda.is_available():
        sys.stderr.write("stepscope bench mla: torch finds no CUDA GPU here; there is nothing to measure on\n")
        return NO_DEVICE
    if arguments.peers_into is not None:
        arguments.peers_into.write_text(json.dumps(_peers_here()))
        return 0
    mine = [m.to_json() for m in measure([own()], CASES)]
    sets = dict(one.split("=", 1) for one in arguments.peers)
    found = {label: _peers_elsewhere(folders) for label, folders in sets.items()} or {"installed": _peers_here()}
    failures = {
        f"{m['contender']} ({label})": m["failure"]
        for label, one in found.items()
        for m in one["measured"]
        if m["failure"]
    }
    rows = rows_of(mine, {label: one["measured"] for label, one in found.items()})
    properties = torch.cuda.get_device_properties(0)
    result = {
        "machine": f"one {properties.name}, {properties.multi_processor_count} SMs",
        "driver": _driver(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": arguments.commit,
        "peer_versions": {label: one["versions"] for label, one in found.items()},
        "peer_failures": failures,
        "rows": rows,
        "casts": measure_casts(),
        "accuracy": {
            case.name: accuracy(case, own(out_dtype=torch.float32)) for case in CASES if case.all_tokens <= 131_072
        },
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"{arguments.name}.json").write_text(json.dumps(result, indent=1) + "\n")
    table = markdown_of(result)
    (arguments.out / f"{arguments.name}.md").write_text(table)
    print(table)  # noqa: T201 - the command's output
    return 0 if all(all(gates_of(row).values()) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
