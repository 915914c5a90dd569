"""Make the repository's traces out of what `stepscope lab record --all` wrote.

    python -m scripts.cut_lab RECORDED tests/traces

Of eager steps the last two are kept, of those with stacks the last one; flow events are left out, and every other event
stays as it was recorded, to the letter. A capture or stacks are kept once a slowdown, and once without any; of a trace
that is still too large nothing is kept. The truth names what remains.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
from pathlib import Path
from typing import Any

import msgspec
from scripts.cut_sample import EVENTS_KEY, cut

from stepscope.pipeline.load.scanner import split_events

MOST_BYTES = {"steps": 300_000, "capture": 300_000, "stacks": 600_000}
FLOWS = {"s", "t", "f"}
ONCE = {"capture", "stacks"}
"""Kinds of trace that say the same in every case of a slowdown."""


def cut_case(source: Path, target: Path, seen: set[tuple[str, str]]) -> None:
    """Write a case's traces and truth, smaller; `seen` holds what other cases have given once."""
    target.mkdir(parents=True, exist_ok=True)
    truth = msgspec.json.decode((source / "truth.json").read_bytes())
    for recording in truth["recordings"].values():
        for kind, name in list(recording["traces"].items()):
            known = (truth["slowdown"] or "", kind)
            packed = b"" if known in seen else _packed(gzip.decompress((source / name).read_bytes()), name)
            if kind in ONCE:
                seen.add(known)
            if packed and len(packed) <= MOST_BYTES[kind]:
                (target / name).write_bytes(packed)
            else:
                del recording["traces"][kind]
    (target / "truth.json").write_bytes(msgspec.json.format(msgspec.json.encode(truth), indent=1) + b"\n")


def _packed(text: bytes, name: str) -> bytes:
    if name == "eager.json.gz":
        text = cut(text, 1, 2, "step[")
    elif name == "stacks.json.gz":
        text = cut(text, 1, 1, "step[")
    begin = text.index(EVENTS_KEY) + len(EVENTS_KEY)
    split = split_events(text[begin:])
    kept = [raw for raw in split.events if msgspec.json.decode(raw).get("ph") not in FLOWS]
    whole = text[:begin] + b"\n  " + b",\n  ".join(kept) + b"\n  ]" + text[begin + split.rest :]
    return gzip.compress(whole, 9, mtime=0)


def _order(folder: Path) -> tuple[Any, ...]:
    """Put a slowdown's plainest case first: one request, few tokens, a large pool."""
    truth = msgspec.json.decode((folder / "truth.json").read_bytes())
    return truth["new_tokens"], sum(truth["contexts"]), -truth["pool_slots"], folder.name


def main() -> None:
    """Read the command line, and cut every case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recorded", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    seen: set[tuple[str, str]] = set()
    for source in sorted((path.parent for path in arguments.recorded.glob("*/truth.json")), key=_order):
        cut_case(source, arguments.output / source.name, seen)
    shutil.copyfile(arguments.recorded / "config.json", arguments.output / "config.json")


if __name__ == "__main__":
    main()
