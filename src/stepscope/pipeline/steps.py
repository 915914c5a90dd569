"""Steps of the engine: where each begins, in which phase it is, and which GPU work belongs to it.

A step's GPU work is what was launched from the start of its annotation until the next one begins: the annotation
itself ends when the launches do, and samplers run after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.trace import intervals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked

    Ints = NDArray[np.int64]

MIN_STEADY = 3
"""So many steps of a phase must remain if the first is left out."""
WAIT_HOLE_NS = 1_000_000
"""A hole in the GPU's timeline this long, spent by the host in waiting calls, is unrecorded work, not idle time."""
WAIT_HOLE_SHARE = 0.9
"""So much of the hole must lie in calls that wait for the GPU."""
WAITS = re.compile(r"^(?:cuda|hip|cu)\w*(?:Synchronize|Memcpy\w*)$")
"""Runtime calls that can wait for the GPU; an asynchronous copy of pageable memory waits too."""

CAPTURE = "StreamEndCapture|GraphInstantiate"
"""Runtime calls that end the capture of a graph: what was launched before them did not run."""

# a number of more than 9 digits is damage, and may not fit in 64 bits
_SGLANG = re.compile(r"^step\[(?P<phase>[A-Z_]+)(?: bs=(?P<batch>\d{1,9})\b)?")
_VLLM = re.compile(r"^execute_(?:\d+_)?context_(?P<prefills>\d{1,9})\(.*?\)_generation_(?P<decodes>\d{1,9})\(")
_TORCH = re.compile(r"^ProfilerStep#\d+")


class Phase(StrEnum):
    """What a step computes."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"
    WARM_UP = "warm-up"
    UNKNOWN = "unknown"


_SGLANG_PHASES = {"DECODE": Phase.DECODE, "EXTEND": Phase.PREFILL, "PREFILL": Phase.PREFILL, "MIXED": Phase.MIXED}


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass."""

    name: str
    phase: Phase
    batch_size: int | None
    host_start_ns: int


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a trace, in order, and the GPU work of each."""

    steps: tuple[Step, ...]
    step_of_kernel: Ints
    """Shape [kernels]: index into `steps`; -1 for GPU work outside every step."""
    annotated: bool
    """False where nothing in the trace marks a step, and the whole recording stands for one."""
    is_capture: bool
    """Whether a graph was captured while recording, so that the recording is not of steps."""
    hole_ns: int
    """Time at the start of the first step in which the host waited for GPU work that was not recorded."""

    def rows(self, indices: Sequence[int]) -> NDArray[np.bool_]:
        """Return which kernels belong to any of the given steps."""
        return np.isin(self.step_of_kernel, np.asarray(indices, dtype=np.int64))

    def at(self, host_ns: Ints) -> Ints:
        """Return the index of the step during which the host did something; -1 before the first."""
        if not self.annotated:
            return np.full(host_ns.shape, len(self.steps) - 1, dtype=np.int64)
        starts = np.array([step.host_start_ns for step in self.steps], dtype=np.int64)
        return np.searchsorted(starts, host_ns, side="right") - 1

    def phases(self) -> dict[Phase, list[int]]:
        """Return the indices of the steps of each phase that did GPU work."""
        with_work = set(np.unique(self.step_of_kernel).tolist())
        phases: dict[Phase, list[int]] = {}
        for index, step in enumerate(self.steps):
            if index in with_work:
                phases.setdefault(step.phase, []).append(index)
        return phases

    def typical(self, indices: Sequence[int]) -> Step:
        """Return the step of the median batch size among these; of those that share it, one from the middle."""
        by_batch = sorted(indices, key=lambda index: self.steps[index].batch_size or 0)
        return self.steps[by_batch[len(by_batch) // 2]]

    def steady_phases(self) -> dict[Phase, list[int]]:
        """Return the steps of each phase that figures are taken from: without the first, where enough remain.

        The first recorded step still loads modules and fills caches, and the host waits in places where it never does
        later.
        """
        phases = self.phases()
        return {phase: steps[1:] if len(steps) > MIN_STEADY else steps for phase, steps in phases.items()}


def find_steps(linked: Linked) -> Steps:
    """Find steps by annotation: SGLang's, else vLLM's, else torch's; else the recording as a whole is one step.

    A recording of a graph's capture has no steps, unless a server marked some.
    """
    is_capture = linked.trace.launches["name"].cast(pl.String).str.contains(CAPTURE).any()
    steps = _annotated(linked, (_sglang_step, _vllm_step) if is_capture else (_sglang_step, _vllm_step, _torch_step))
    kernels = linked.kernels
    if not steps:
        whole = () if is_capture or not kernels.height else (Step("recording", Phase.UNKNOWN, None, 0),)
        of_kernel = np.full(kernels.height, len(whole) - 1, dtype=np.int64)
        return Steps(whole, of_kernel, annotated=False, is_capture=is_capture, hole_ns=0)
    starts = np.array([step.host_start_ns for step in steps], dtype=np.int64)
    launched = linked.trace.launches["start_ns"].to_numpy()
    launch = kernels["launch"].fill_null(0).to_numpy()
    step = np.searchsorted(starts, launched[launch], side="right") - 1 if launched.size else np.full(launch.shape, -1)
    step = np.where(kernels["launch"].is_null().to_numpy(), -1, step)
    step, hole = _without_hole(linked, step)
    return Steps(steps, step, annotated=True, is_capture=is_capture, hole_ns=hole)


def _annotated(linked: Linked, dialects: Sequence[Callable[[str, int], Step | None]]) -> tuple[Step, ...]:
    names = linked.trace.annotations.select("start_ns", pl.col("name").cast(pl.String)).rows()
    for parse in dialects:
        steps = tuple(step for start, name in names if (step := parse(name, start)))
        if steps:
            return steps
    return ()


def _sglang_step(name: str, start: int) -> Step | None:
    found = _SGLANG.match(name)
    if not found:
        return None
    batch = int(found["batch"]) if found["batch"] else None
    return Step(name, _SGLANG_PHASES.get(found["phase"], Phase.UNKNOWN), batch, start)


def _vllm_step(name: str, start: int) -> Step | None:
    found = _VLLM.match(name)
    if not found:
        return None
    prefills, decodes = int(found["prefills"]), int(found["decodes"])
    if not prefills and not decodes:
        return None
    phase = Phase.MIXED if prefills and decodes else Phase.PREFILL if prefills else Phase.DECODE
    return Step(name, phase, prefills + decodes, start)


def _torch_step(name: str, start: int) -> Step | None:
    return Step(name, Phase.UNKNOWN, None, start) if _TORCH.match(name) else None


def _without_hole(linked: Linked, step: Ints) -> tuple[Ints, int]:
    """Take the GPU work before an unrecorded stretch out of the first step; return the stretch's length in ns."""
    in_steps = step[step >= 0]
    if not in_steps.size:
        return step, 0
    first = step == in_steps.min()  # not 0: of the first step marked, nothing may be recorded
    start = linked.kernels["start_ns"].to_numpy()
    end = start + linked.kernels["duration_ns"].to_numpy()
    gap_starts, gap_ends = intervals.gaps(start[first], end[first])
    lengths = gap_ends - gap_starts
    waits = linked.trace.launches.filter(pl.col("name").cast(pl.String).str.contains(WAITS.pattern))
    wait_starts = waits["start_ns"].to_numpy()
    wait_ends = wait_starts + waits["duration_ns"].to_numpy()
    merged = intervals.union(wait_starts, wait_ends)
    waited = intervals.time_covered_before(gap_ends, *merged) - intervals.time_covered_before(gap_starts, *merged)
    holes = np.flatnonzero((lengths >= WAIT_HOLE_NS) & (waited >= WAIT_HOLE_SHARE * lengths))
    if not holes.size:
        return step, 0
    last = holes[-1]
    return np.where(first & (start < gap_ends[last]), -1, step), int(lengths[last])
