"""Steps by the annotations that servers and torch's profiler write around them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.steps.step import Phase, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.trace import Trace

    Ints = NDArray[np.int64]

# a number of more than 9 digits is damage, and may not fit in 64 bits
_SGLANG = re.compile(r"^step\[(?P<phase>[A-Z_]+)(?: bs=(?P<batch>\d{1,9})\b)?(?: toks=(?P<tokens>\d{1,9})\b)?")
_VLLM = re.compile(
    r"^execute_(?:\d+_)?context_(?P<prefills>\d{1,9})\((?:sq)?(?P<prefilled>\d{1,9}(?!\d))?.*?\)"
    r"_generation_(?P<decodes>\d{1,9})\((?:sq)?(?P<decoded>\d{1,9}(?!\d))?"
)
"""Requests, and in brackets their new tokens; the detailed form counts more: `sq` are the new tokens."""
_VLLM_2025 = re.compile(r"^execute_new_(?P<new>\d{1,9})_cached_(?P<cached>\d{1,9})$")
"""What vLLM wrote in 2025: requests seen for the first time, and those seen before."""
_TORCH = re.compile(r"^ProfilerStep#\d+")
_WARM_UP = r"(?i)warm[-_ ]?up"

_SGLANG_PHASES = {"DECODE": Phase.DECODE, "EXTEND": Phase.PREFILL, "PREFILL": Phase.PREFILL, "MIXED": Phase.MIXED}


def annotated_steps(trace: Trace, captures_ns: Ints) -> tuple[Step, ...]:
    """Return the steps that SGLang marked, else vLLM, else torch; none where nobody marked any.

    Args:
        trace: the trace.
        captures_ns: shape [n], sorted: when the capture of a graph ended. A step that captures one is warm-up; torch's
            are none where all do, because then the capture was what was recorded.
    """
    names = trace.annotations.select("start_ns", pl.col("name").cast(pl.String)).rows()
    for parse in (_sglang_step, _vllm_step, _torch_step):
        steps = tuple(step for start, name in names if (step := parse(name, start)))
        if steps:
            captures = _captures(steps, captures_ns)
            if parse is _torch_step and all(captures):
                return ()
            is_warm_up = captures | _said_to_be_warm_up(trace, steps)
            return tuple(
                replace(step, phase=Phase.WARM_UP) if warms_up else step
                for step, warms_up in zip(steps, is_warm_up.tolist(), strict=True)
            )
    return ()


def _captures(steps: Sequence[Step], captures_ns: Ints) -> NDArray[np.bool_]:
    before = np.searchsorted(captures_ns, [step.host_start_ns for step in steps])
    return np.diff(before, append=captures_ns.size) > 0


def _said_to_be_warm_up(trace: Trace, steps: Sequence[Step]) -> NDArray[np.bool_]:
    said = trace.annotations.filter(pl.col("name").cast(pl.String).str.contains(_WARM_UP))
    start = said["start_ns"].to_numpy()
    ends = np.sort(start + said["duration_ns"].to_numpy())
    at = np.array([step.host_start_ns for step in steps])
    return np.searchsorted(start, at, side="right") > np.searchsorted(ends, at, side="right")


def _sglang_step(name: str, start: int) -> Step | None:
    found = _SGLANG.match(name)
    if not found:
        return None
    batch, tokens = _number(found["batch"]), _number(found["tokens"])
    phase = _SGLANG_PHASES.get(found["phase"], Phase.UNKNOWN)
    if tokens is None and phase is Phase.DECODE:
        tokens = batch  # one token a request
    return Step(name, phase, batch, start, tokens)


def _vllm_step(name: str, start: int) -> Step | None:
    found = _VLLM.match(name)
    if not found:
        return _vllm_2025_step(name, start)
    prefills, decodes = int(found["prefills"]), int(found["decodes"])
    if not prefills and not decodes:
        return None
    phase = Phase.MIXED if prefills and decodes else Phase.PREFILL if prefills else Phase.DECODE
    prefilled, decoded = _number(found["prefilled"]), _number(found["decoded"])
    tokens = None if prefilled is None or decoded is None else prefilled + decoded
    return Step(name, phase, prefills + decodes, start, tokens)


def _vllm_2025_step(name: str, start: int) -> Step | None:
    found = _VLLM_2025.match(name)
    if not found:
        return None
    new, cached = int(found["new"]), int(found["cached"])
    if not new and not cached:
        return None
    # a request seen before may decode, or be in a later chunk of its prefill
    return Step(name, Phase.UNKNOWN if cached else Phase.PREFILL, new + cached, start)


def _torch_step(name: str, start: int) -> Step | None:
    return Step(name, Phase.UNKNOWN, None, start) if _TORCH.match(name) else None


def _number(digits: str | None) -> int | None:
    return None if digits is None else int(digits)
