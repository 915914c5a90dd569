"""Where a cause comes from: the statement in your code, the functions, modules and layers around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.document import Frame
from stepscope.pipeline.attribute.code_owner import is_yours
from stepscope.pipeline.attribute.modules import layers_of
from stepscope.pipeline.attribute.stacks import FUNCTION, stack_of
from stepscope.pipeline.attribute.statement import NoStatement, Statement, find_statement
from stepscope.pipeline.detect.rule import Unchecked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.attribute.stacks import Stack
    from stepscope.pipeline.detect.rule import Case
    from stepscope.trace import Trace

NO_STACKS = Unchecked(
    "which line of code it comes from: no Python stacks around it",
    "record an eager run (SGLang: --disable-cuda-graph) with with_stack=True, and pass it as --capture-trace; then"
    " --source DIR",
)
_SHOWN_LINES = 8


@dataclass(frozen=True, slots=True)
class Origin:
    """Where groups of work come from; the stack is that of the first call of the largest."""

    stack: Stack | None
    found: Statement | NoStatement | None
    """None without a stack."""
    frames: list[Frame]
    """The functions around the op, outermost first."""
    layers: list[int]
    """The numbers of the layers that any of the groups runs in, where they are certain."""

    @classmethod
    def of(cls, case: Case, groups: Sequence[WorkGroup]) -> Origin:
        """Look up where groups of work come from, the largest first."""
        op = case.linked.op_of(int(groups[0].rows[0]))
        return cls.at(case, op, np.concatenate([group.rows for group in groups]))

    @classmethod
    def at(cls, case: Case, op: tuple[Trace, int] | None, rows: NDArray[np.int64]) -> Origin:
        """Look up what is around an op, given as its trace and its row there, and which layers GPU work is of."""
        stack = None if op is None else stack_of(*op, case.internal)
        frames = [] if stack is None else stack.frames
        return cls(
            stack,
            None if stack is None else find_statement(stack, case.sources),
            [
                Frame(file=f.file, line=f.line, function=f.function, yours=is_yours(f.file, case.internal))
                for f in frames
            ],
            layers_of(case.linked, rows),
        )

    @property
    def statement(self) -> Statement | None:
        """The statement, where it is known, or those that it may be."""
        return self.found if isinstance(self.found, Statement) else None

    @property
    def where(self) -> str | None:
        """The statement's `file:line`, or else that of the innermost function of your code."""
        if self.statement is not None:
            return f"{self.statement.file}:{self.statement.lines[0]}"
        return f"{self.stack.frame.file}:{self.stack.frame.line}" if self.stack else None

    @property
    def modules(self) -> list[str]:
        """The modules around the op, outermost first."""
        return list(self.stack.modules) if self.stack else []

    @property
    def notes(self) -> list[str]:
        """What must be said about an ambiguous statement."""
        if self.statement is None or len(self.statement.lines) == 1:
            return []
        lines = ", ".join(map(str, self.statement.lines[:_SHOWN_LINES]))
        lines += ", …" if len(self.statement.lines) > _SHOWN_LINES else ""
        return [f"The call is on one of the lines {lines} of {self.statement.file}."]

    def unchecked(self) -> Iterator[Unchecked]:
        """Yield what is missing to name the line of code."""
        if self.stack is None:
            yield NO_STACKS
        elif isinstance(self.found, NoStatement):
            yield Unchecked(f"which statement it comes from: {self.found.why}", self.found.remedy)


def your_line(frames: Sequence[Frame]) -> str | None:
    """Return the `file:line` of the innermost function of your code."""
    return next((f"{frame.file}:{frame.line}" for frame in reversed(frames) if frame.yours), None)


def functions_during(case: Case, thread: int, start: int, end: int) -> list[Frame]:
    """Return the Python functions that a thread was in for most of an interval, outermost first."""
    frames = case.linked.trace.frames.filter(pl.col("thread") == thread)
    last = pl.min_horizontal(pl.col("start_ns") + pl.col("duration_ns"), end)
    most = frames.filter(last - pl.max_horizontal("start_ns", start) > (end - start) // 2)
    most = most.sort("start_ns", "duration_ns", descending=[False, True], maintain_order=True)
    found = (FUNCTION.match(name) for name in most["name"].cast(pl.String).to_list())
    return [
        Frame(
            file=name["file"],
            line=int(name["line"]),
            function=name["function"],
            yours=is_yours(name["file"], case.internal),
        )
        for name in found
        if name
    ]
