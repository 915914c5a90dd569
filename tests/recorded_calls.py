"""Recorded calls in short: `to` is a built-in, `f()` a Python function, `Linear:` a module, `+add` an op."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

from stepscope.pipeline.attribute.stacks import Call, CallKind, Calls, Stack, StackFrame
from stepscope.pipeline.attribute.statement import NoStatement, Statement, find_statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def call(text: str) -> Call:
    """Return a call written in short."""
    if text.endswith("()"):
        return Call(text.removesuffix("()"), CallKind.FUNCTION)
    if text.endswith(":"):
        return Call(text.removesuffix(":"), CallKind.MODULE)
    return Call(text.removeprefix("+"), CallKind.OP if text.startswith("+") else CallKind.BUILT_IN)


def stack_in(
    file: str,
    *calls: str,
    line: int = 1,
    function: str = "f",
    was_running: bool = False,
    later: Sequence[str] | None = None,
) -> Stack:
    """Return the stack of an op whose function made these calls, the op's the last; `later`: all until it ended."""
    frames = (StackFrame("server.py", 1, "main"), StackFrame(file, line, function, was_running=was_running))
    until, after = tuple(map(call, calls)), tuple(map(call, later or ()))
    made = Calls(
        until,
        after,
        built_ins=any(made.kind is CallKind.BUILT_IN for made in (*until, *after)),
        from_start=not was_running,
        to_end=later is not None,
    )
    return Stack(frames, 1, made)


def found_in(folder: Path, stack: Stack) -> Statement:
    """Return the statement that must be found."""
    found = find_statement(stack, [folder])
    assert isinstance(found, Statement), found
    return found


def why_not_in(folder: Path, stack: Stack) -> str:
    """Return why no statement is found."""
    found = find_statement(stack, [folder])
    assert isinstance(found, NoStatement), found
    return found.why


Case = tuple[str, str] | tuple[str, str, str]
"""A source, what its function `f` called up to the call in question, and what until it ended, where that is known.

The line that made the call carries `# <-`; where several cannot be told apart, each carries it.
"""


def check_case(case: Case, folder: Path) -> None:
    """Check that the lines that are said are those that the case marks."""
    source, calls, *later = case
    text = dedent(source).lstrip("\n")
    lines = tuple(number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# <-"))
    (begin,) = (number for number, line in enumerate(text.splitlines(), 1) if line.startswith("def f("))
    (folder / "m.py").write_text(text)
    after = later[0].split() if later else None
    found = found_in(folder, stack_in("m.py", *calls.split(), line=begin, later=after))
    assert found.lines == lines
    assert (found.text is None) == (len(lines) > 1)
