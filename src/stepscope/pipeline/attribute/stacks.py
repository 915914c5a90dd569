"""The Python stack around an op, where it is your code, and what that code called up to the op."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import polars as pl

from stepscope.pipeline.attribute.code_owner import INTERNAL, is_yours
from stepscope.pipeline.attribute.modules import modules_of_hierarchy

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from stepscope.trace import Trace

FUNCTION = re.compile(r"^(?P<file>.+)\((?P<line>\d{1,9})\): (?P<function>.+)$", re.DOTALL)
"""What the frame of a Python function is named; frames of modules and built-ins are not.

A dot matches line breaks too: a name of a million parts that ends in two would be tried at each of them, to its end.
"""
MODULE = "nn.Module: "
"""What the frame of a module's call begins with."""
MOST_CALLS = 256
"""So many calls on each side of the op are looked at; a server's loop has made millions."""
_MOST_FRAMES = 1000
"""Of a deeper stack the innermost functions are kept: Python itself goes no deeper unless it is told to."""
_C_FUNCTION = "<built-in "
_BUILT_IN = re.compile(rf"^{_C_FUNCTION}(?:method|function) (?P<name>\w+)\b")
_COMPILER = "torch/_dynamo/"
_BETWEEN = ";"
"""Between the functions of a `Call stack`, of which the innermost comes first."""


class CallKind(StrEnum):
    """What a call was recorded as, which says how its name and the source's agree."""

    FUNCTION = "function"
    """A Python function: by the name of its definition, which a decorator or an alias hides."""
    COMPILED = "compiled"
    """What torch.compile runs: within a function that it compiled, in place of the function's own calls."""
    BUILT_IN = "built-in"
    """A function written in C: by its own name."""
    MODULE = "module"
    """The call of a module, by its class."""
    OP = "op"
    """An op that Python called by no name, such as an operator's."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a function made."""

    name: str
    """Of an op without `aten::`, of a module its class."""
    kind: CallKind


@dataclass(frozen=True, slots=True)
class Calls:
    """What a function called itself, in order; at most `MOST_CALLS` before the op's, and as many after."""

    until: tuple[Call, ...]
    """Up to the call that the op is in, or that is the op; none where the spans contradict each other."""
    later: tuple[Call, ...] = ()
    from_start: bool = True
    """Whether these are all since the function began."""
    to_end: bool = False
    """Whether these are all until it ended."""
    built_ins: bool = False
    """Whether its thread's recording holds calls of functions written in C."""


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
    """The functions and modules around an op, outermost first, and what your code called, the op's own call last."""

    frames: tuple[StackFrame, ...]
    place: int
    """Which of the frames is the innermost of your code; the innermost of all where none is."""
    calls: Calls | None
    """What that frame called; None where stacks were recorded as text: the frames' lines are those of the calls."""
    modules: tuple[str, ...] = ()

    @property
    def frame(self) -> StackFrame:
        """The innermost frame of your code."""
        return self.frames[self.place]


def stack_of(trace: Trace, op: int, internal: Collection[str] = INTERNAL) -> Stack | None:
    """Return the stack around row `op` of `trace.ops`; None where no Python function was recorded around it.

    Args:
        trace: the trace.
        op: row of `trace.ops`.
        internal: packages whose functions are not your code.
    """
    start, duration, thread = trace.ops.select("start_ns", "duration_ns", "thread").row(op)
    on_thread = trace.frames.with_row_index("row").filter(pl.col("thread") == thread)
    around = _around(on_thread, start, duration)
    rows = (
        around.tail(_MOST_FRAMES).select("row", pl.col("name").cast(pl.String), "start_ns", "duration_ns").iter_rows()
    )
    functions = [(row, found, low, low + length) for row, name, low, length in rows if (found := FUNCTION.match(name))]
    if not functions:
        return _recorded_as_text(trace, op, internal)
    first_end = on_thread.select((pl.col("start_ns") + pl.col("duration_ns")).min()).item()
    frames = tuple(
        StackFrame(found["file"], int(found["line"]), found["function"], was_running=low < first_end)
        for _, found, low, _ in functions
    )
    place = place_of(frames, internal)
    row, _, low, high = functions[place]
    outer = around["row"].to_list()
    calls = _calls(trace, op, on_thread.filter(~pl.col("row").is_in(outer[: outer.index(row) + 1])), (low, high))
    calls = replace(calls, from_start=calls.from_start and not frames[place].was_running)
    names = around["name"].cast(pl.String)
    modules = names.filter(names.str.starts_with(MODULE)).str.strip_prefix(MODULE)
    return Stack(frames, place, calls, tuple(modules))


def frames_of_text(call_stack: str) -> tuple[StackFrame, ...]:
    """Return the functions of a `Call stack`, outermost first; what is no function is left out."""
    functions = (FUNCTION.match(name) for name in reversed(call_stack.split(_BETWEEN)))
    return tuple(StackFrame(found["file"], int(found["line"]), found["function"]) for found in functions if found)


def _around(table: pl.DataFrame, start: int, duration: int) -> pl.DataFrame:
    """Return the spans that enclose one, outermost first; where times were rounded, its later half may stick out."""
    ends = pl.col("start_ns") + pl.col("duration_ns")
    return table.filter((pl.col("start_ns") <= start) & (ends > start) & (ends >= start + duration // 2)).sort(
        "start_ns", "duration_ns", descending=[False, True], maintain_order=True
    )


def place_of(frames: Sequence[StackFrame], internal: Collection[str]) -> int:
    """Return which of the frames, outermost first, is the innermost of your code; the last where none is."""
    yours = [number for number, frame in enumerate(frames) if is_yours(frame.file, internal)]
    return yours[-1] if yours else len(frames) - 1


def _calls(trace: Trace, op: int, frames: pl.DataFrame, function: tuple[int, int]) -> Calls:
    """Return what a function called directly.

    Args:
        trace: the trace.
        op: the op within it, as a row of `trace.ops`.
        frames: those of its thread, but for the function itself and what is around it.
        function: where it begins and ends.
    """
    low, high = function
    at, duration, thread = trace.ops.select("start_ns", "duration_ns", "thread").row(op)
    end = pl.col("start_ns") + pl.col("duration_ns")
    inside = (pl.col("start_ns") >= low) & (end <= high)
    is_within = (pl.col("duration_ns") < high - low) | (pl.col("row") == op)  # no op around the function itself
    columns = ("start_ns", "duration_ns", pl.col("name").cast(pl.String))
    ops = trace.ops.with_row_index("row").filter((pl.col("thread") == thread) & inside & is_within)
    spans = pl.concat(
        [
            frames.filter(inside).select(*columns, is_op=pl.lit(value=False)),
            ops.select(*columns, is_op=pl.lit(value=True)),
        ]
    ).sort("start_ns", "duration_ns", "is_op", descending=[False, True, False], maintain_order=True)
    # where times were rounded, a call may begin before the one before it ends: it is none of that one's by its middle
    middle = pl.col("start_ns") + pl.col("duration_ns") // 2
    direct = spans.filter(middle >= end.cum_max().shift(1, fill_value=low))
    until, later = direct.filter(pl.col("start_ns") <= at), direct.filter(pl.col("start_ns") > at)
    holds_op = until.tail(1).select((end >= at + duration // 2).any()).item()
    return Calls(
        _named(until.tail(MOST_CALLS)) if holds_op else (),
        _named(later.head(MOST_CALLS)),
        from_start=until.height <= MOST_CALLS,
        built_ins=bool(frames["name"].unique().cast(pl.String).str.starts_with(_C_FUNCTION).any()),
        to_end=bool(frames.select((pl.col("start_ns") >= high).any()).item()) and later.height <= MOST_CALLS,
    )


def _named(spans: pl.DataFrame) -> tuple[Call, ...]:
    return tuple(_call(name, is_op=is_op) for name, is_op in spans.select("name", "is_op").iter_rows())


def _call(name: str, *, is_op: bool) -> Call:
    built_in, function = _BUILT_IN.match(name), FUNCTION.match(name)
    if is_op:
        return Call(name.removeprefix("aten::"), CallKind.OP)
    if built_in:
        return Call(built_in["name"], CallKind.BUILT_IN)
    if name.startswith(MODULE):
        return Call(name.removeprefix(MODULE).rpartition("_")[0], CallKind.MODULE)
    if function is None:
        return Call(name, CallKind.FUNCTION)
    is_compiled = _COMPILER in function["file"].replace("\\", "/")
    return Call(function["function"], CallKind.COMPILED if is_compiled else CallKind.FUNCTION)


def _recorded_as_text(trace: Trace, op: int, internal: Collection[str]) -> Stack | None:
    """Return the stack that stands on the op or, where it has none, on the innermost op around it."""
    start, duration, thread = trace.ops.select("start_ns", "duration_ns", "thread").row(op)
    told = pl.col("call_stack").is_not_null() & (pl.col("thread") == thread)
    around = _around(trace.ops.filter(told), start, duration)
    if not around.height:
        return None
    call_stack, hierarchy = around.select(pl.col("call_stack", "module_hierarchy").cast(pl.String)).row(-1)
    frames = frames_of_text(call_stack)
    if not frames:
        return None
    modules = tuple(modules_of_hierarchy(hierarchy)) if hierarchy else ()
    return Stack(frames, place_of(frames, internal), None, modules)
