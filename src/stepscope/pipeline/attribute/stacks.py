"""The Python stack around an op, and what the innermost function did up to it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from stepscope.trace import Trace

FUNCTION = re.compile(r"^(?P<file>.+)\((?P<line>\d{1,9})\): (?P<function>.+)$")
"""What the frame of a Python function is named; frames of modules and built-ins are not."""
_BUILT_IN = re.compile(r"^<built-in (?:method|function) (?P<name>\w+)\b")


@dataclass(frozen=True, slots=True)
class StackFrame:
    """A Python function; `line` is its first line, unless it was already running when recording began."""

    file: str
    line: int
    function: str
    was_running: bool = False
    """Whether it may have been running already when recording began: nothing ended on its thread before it began."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The functions around an op, outermost first, and the calls that the innermost made, the op's own last."""

    frames: tuple[StackFrame, ...]
    calls: tuple[str, ...]
    """Names in order: of functions and built-ins, and of ops that Python did not call by a name, without `aten::`."""


def stack_of(trace: Trace, op: int) -> Stack | None:
    """Return the stack around row `op` of `trace.ops`; None where no Python function was recorded around it."""
    start, duration, thread = trace.ops.select("start_ns", "duration_ns", "thread").row(op)
    on_thread = trace.frames.filter(pl.col("thread") == thread)
    ends = pl.col("start_ns") + pl.col("duration_ns")
    around = on_thread.filter((pl.col("start_ns") <= start) & (ends >= start + duration)).sort(
        "start_ns", "duration_ns", descending=[False, True]
    )
    functions = [
        (FUNCTION.match(name), low, low + length)
        for name, low, length in around.select(pl.col("name").cast(pl.String), "start_ns", "duration_ns").iter_rows()
    ]
    named = [(found, low, high) for found, low, high in functions if found]
    if not named:
        return None
    first_end = on_thread.select(ends.min()).item()
    frames = tuple(
        StackFrame(found["file"], int(found["line"]), found["function"], was_running=begin < first_end)
        for found, begin, _ in named
    )
    _, low, high = named[-1]
    return Stack(frames, _calls(trace, thread, low, high, start))


def _calls(trace: Trace, thread: int, low: int, high: int, until: int) -> tuple[str, ...]:
    """Return what a function running in [low, high) called directly, up to time `until`."""
    inside = (pl.col("thread") == thread) & (pl.col("start_ns") >= low) & (pl.col("start_ns") <= until)
    within = inside & (pl.col("start_ns") + pl.col("duration_ns") <= high) & (pl.col("duration_ns") < high - low)
    columns = ("start_ns", "duration_ns", pl.col("name").cast(pl.String))
    rows = sorted(
        [(s, -d, 0, name) for s, d, name in trace.frames.filter(within).select(columns).iter_rows()]
        + [(s, -d, 1, name) for s, d, name in trace.ops.filter(within).select(columns).iter_rows()]
    )
    calls, free_from = [], low
    for s, negative_duration, _, name in rows:
        if s >= free_from:
            calls.append(_call_name(name))
            free_from = s - negative_duration
    return tuple(calls)


def _call_name(name: str) -> str:
    built_in = _BUILT_IN.match(name)
    if built_in:
        return built_in["name"]
    function = FUNCTION.match(name)
    return function["function"] if function else name.removeprefix("aten::")
