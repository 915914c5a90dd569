"""Cut a few steps out of a trace, each kept event as it was recorded, to the letter.

The bundled samples were made from the two traces that lab.py recorded:

    python scripts/cut_sample.py graph-cast.json.gz src/stepscope/samples/graph-cast.json.gz --skip 1
    python scripts/cut_sample.py eager-cast-stacks.json.gz src/stepscope/samples/eager-cast-stacks.json.gz

Kept are the header, the metadata, the host's spans that overlap the steps, and the GPU work that was launched in them.
Flow events are left out: stepscope joins by correlation.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.pipeline.load.scanner import split_events

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GPU_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCH_CATEGORIES = {"cuda_runtime", "cuda_driver"}
EVENTS_KEY = b'"traceEvents": ['


def cut(text: bytes, skip: int, steps: int, annotation: str) -> bytes:
    """Return the trace with only `steps` steps, after leaving out the first `skip`.

    Raises:
        ValueError: the trace has fewer steps.
    """
    begin = text.index(EVENTS_KEY) + len(EVENTS_KEY)
    split = split_events(text[begin:])
    events = [(raw, msgspec.json.decode(raw)) for raw in split.events]
    starts = sorted(event["ts"] for _, event in events if _is_step(event, annotation))
    if len(starts) < skip + steps:
        raise ValueError(f"the trace has {len(starts)} steps, not {skip + steps}")
    low = starts[skip]
    high = starts[skip + steps] if len(starts) > skip + steps else float("inf")
    correlations = {
        event["args"].get("correlation")
        for _, event in events
        if event.get("cat") in LAUNCH_CATEGORIES and low <= event["ts"] < high
    }
    kept = list(_kept(events, low, high, correlations))
    return text[:begin] + b"\n  " + b",\n  ".join(kept) + b"\n  ]" + text[begin + split.rest :]


def _kept(events: Sequence[tuple[bytes, Any]], low: float, high: float, correlations: set[Any]) -> Iterator[bytes]:
    for raw, event in events:
        if event["ph"] == "M":
            yield raw
        elif event["ph"] == "X":
            category = event.get("cat")
            if category in GPU_CATEGORIES:
                if event["args"].get("correlation") in correlations:
                    yield raw
            elif event["ts"] < high and event["ts"] + event["dur"] > low:
                yield raw


def _is_step(event: dict[str, Any], annotation: str) -> bool:
    return event.get("cat") == "user_annotation" and event["name"].startswith(annotation)


def main() -> None:
    """Read the command line, cut, and write the result compressed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--skip", type=int, default=0, help="steps to leave out at the start")
    parser.add_argument("--steps", type=int, default=2, help="steps to keep")
    parser.add_argument("--annotation", default="step[", help="how the names of the steps' annotations begin")
    arguments = parser.parse_args()
    text = cut(gzip.decompress(arguments.trace.read_bytes()), arguments.skip, arguments.steps, arguments.annotation)
    arguments.output.write_bytes(gzip.compress(text, 9, mtime=0))


if __name__ == "__main__":
    main()
