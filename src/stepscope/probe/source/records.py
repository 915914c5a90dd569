"""What following a backend found: places where a pool is read, cast, or handed to `plan()`."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.probe.source.values import Values
    from stepscope.probe.source.walk import Frame

How = Literal["cast", "copy", "arithmetic", "dynamic"]


@dataclass(frozen=True, slots=True)
class Place:
    """A call in a file: from its first line to the last line of its arguments, which is how people cite one."""

    file: str
    line: int
    end_line: int
    function: str
    statement: str


@dataclass(frozen=True, slots=True)
class PoolUse:
    """An operation over a whole pool that gives it another type, or may."""

    place: Place
    how: How
    target: Values
    cls: str | None
    """The class whose object it was followed for."""
    root: str
    """The method that it was reached from."""
    conditions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanCall:
    """A call of a wrapper's `plan()`: what its two types can be."""

    place: Place
    """The lines of the types among its arguments."""
    call_line: int
    query: Values
    pool: Values
    is_whole: bool
    """False: arguments were unpacked from something, so that the types may be among them."""
    cls: str | None
    root: str
    conditions: tuple[str, ...]


@dataclass(slots=True)
class Records:
    """All that one backend's source showed."""

    reads: set[Place] = field(default_factory=set)
    uses: set[PoolUse] = field(default_factory=set)
    plans: set[PlanCall] = field(default_factory=set)
    gave_up: bool = False
    """Whether there was too much to follow all of it."""


def place_of(
    node: ast.expr | ast.arg, arguments: Sequence[ast.expr | ast.arg], frame: Frame, *, only_arguments: bool = False
) -> Place:
    """Return where a call is, up to the last line of these arguments; `only_arguments`: from their first line on."""
    lines = [line for argument in arguments for line in (argument.lineno, argument.end_lineno or argument.lineno)]
    begin = min(lines) if lines and only_arguments else node.lineno
    end = max(lines) if lines else node.end_lineno or node.lineno
    file = frame.module.file
    text = ast.get_source_segment(file.text, node) or ""
    return Place(file.path, begin, end, frame.callee.function.name, " ".join(text.split())[:300])
