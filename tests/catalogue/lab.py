"""The laboratory's recordings: what was switched on must be found, whatever way it was recorded."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.catalogue.case import Case, Origin

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACES = Path(__file__).parents[1] / "traces"
SLIGHT = 0.02
"""What costs less of a step than this, timed without the profiler, may be found as info."""
GRAPHS_WOULD_HELP = 1.1
"""Eager steps that take so much longer than a graph's, timed without the profiler, are launch-bound."""
EAGER = "launched one by one and recorded, which makes every launch longer"
BETWEEN_STEPS = {"allocator-churn": "the frees", "host-gap": "the gap"}
"""Slowdowns that lie between two steps: a trace of a single step does not hold them."""


def cases() -> Iterator[Case]:
    """Yield a case for each trace, with its capture trace and without."""
    for folder in sorted(path.parent for path in TRACES.glob("*/truth.json")):
        told = json.loads((folder / "truth.json").read_bytes())
        for mode, recording in told["recordings"].items():
            traces = {kind: folder / file for kind, file in recording["traces"].items()}
            captures = [None, *([traces.pop("capture")] if "capture" in traces else [])]
            for kind, capture in product(traces, captures):
                name = f"lab, {folder.name}, {mode}, {kind}{', joined' if capture else ''}"
                yield _case(name, told, (traces[kind],), capture=capture, **_label(told, mode, kind))
    yield from _ranks()


def _label(told: dict[str, Any], mode: str, kind: str) -> dict[str, Any]:
    """Return what is true of a trace of a case, as its truth tells it."""
    must, true_too, slight = {}, {}, set()
    step, without = (told["recordings"][mode][name] for name in ("step", "step_without"))
    slowdown = told["slowdown"]
    if slowdown and not (kind == "stacks" and slowdown in BETWEEN_STEPS):
        must[told["rule"]] = f"{slowdown} is switched on"
        if step["median_us"] - without["median_us"] < SLIGHT * step["median_us"]:
            slight.add(told["rule"])
    elif slowdown == "allocator-churn":
        true_too[told["rule"]] = "the allocations lie in the step, what they cost before it"
    graph = told["recordings"].get("graph")
    if mode == "eager" and graph:
        if step["median_us"] > GRAPHS_WOULD_HELP * graph["step"]["median_us"]:
            must["launch-bound"] = "the same step in a graph is faster by more than a tenth"
        else:
            true_too["launch-bound"] = EAGER
    return {"must": must, "true_too": true_too, "slight": frozenset(slight)}


def _ranks() -> Iterator[Case]:
    """Yield two ranks together, and each alone: of one, nobody can tell that it waits for the other."""
    for folder in sorted(path.parent for path in TRACES.glob("*/ranks.json")):
        told = json.loads((folder / "ranks.json").read_bytes())
        for mode, recording in told["recordings"].items():
            traces = tuple(folder / file for file in recording["traces"]["steps"])
            for rank in (None, *range(len(traces))):
                must, true_too = {}, {"launch-bound": EAGER} if mode == "eager" else {}
                if rank is None:
                    must, true_too = true_too, {}
                    if told["late_rank"] is not None:
                        must["rank-skew"] = "a rank is delayed at every all-reduce"
                    elif mode == "eager":
                        true_too["rank-skew"] = "rank 0 comes 0.2 ms after rank 1: its host launches more slowly"
                whose = "both ranks" if rank is None else f"rank {rank} alone"
                yield _case(
                    f"lab, {folder.name}, {mode}, {whose}",
                    told,
                    traces if rank is None else (traces[rank],),
                    model=str(folder / "config.json"),
                    must=must,
                    true_too=true_too,
                )


def _case(name: str, told: dict[str, Any], traces: tuple[Path, ...], **more: Any) -> Case:
    fields = {"model": str(TRACES / "config.json"), "tp": told["tp_slice"], "context": max(told["contexts"])}
    return Case(name=name, origin=Origin.LAB, traces=traces, **fields | more)
