"""Which statement of a function made a recorded call: the source's calls lined up with the recorded ones."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.pipeline.attribute.stacks import CallKind
from stepscope.pipeline.attribute.statement.evaluation import COMPREHENSIONS, Comprehension
from stepscope.pipeline.attribute.statement.explain import explain
from stepscope.pipeline.attribute.statement.files import sources
from stepscope.pipeline.attribute.statement.paths import aliases_of, paths_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stepscope.pipeline.attribute.stacks import Stack, StackFrame
    from stepscope.pipeline.attribute.statement.evaluation import Paths

_MOST_COST_A_CALL = 2
"""Where more of the recording than this, for each call, is not explained, the source is another version's."""
_Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | Comprehension
_MODULE = "<module>"
_LAMBDA = "<lambda>"


@dataclass(frozen=True, slots=True)
class Statement:
    """The source text of a statement and the line it begins on; several lines where they cannot be told apart."""

    text: str | None
    file: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NoStatement:
    """Why the statement is not known."""

    why: str
    """What is missing, as a clause: `lab.py was not found`."""


def find_statement(stack: Stack, folders: Sequence[Path]) -> Statement | NoStatement:
    """Return the statement of the innermost function of your code that made the stack's last call.

    Args:
        stack: the stack; its `frame` names the file.
        folders: where the source is looked for, before the file that the trace itself names.
    """
    frame = stack.frame
    if stack.calls is not None and not stack.calls.until:
        return NoStatement(f"the recorded spans within {frame.function} in {frame.file} overlap without sense")
    if stack.calls is not None and stack.calls.until[-1].kind is CallKind.COMPILED:
        return NoStatement(f"{frame.function} in {frame.file} ran as torch.compile rewrote it, without its statements")
    missing: list[NoStatement] = []
    for path in sources(frame.file, folders):
        found = _in_file(path, stack)
        if isinstance(found, Statement):
            return found
        missing.append(found)
    return missing[0] if missing else NoStatement(f"{frame.file} was not found")


def _in_file(path: Path, stack: Stack) -> Statement | NoStatement:
    file = stack.frame.file
    try:
        source = path.read_text("utf-8")
        with warnings.catch_warnings(action="ignore"):  # what is odd in the user's source is not ours to say
            return _in_source(source, stack)
    except OSError as error:
        return NoStatement(f"{file} cannot be read ({error.strerror})")
    except (SyntaxError, ValueError):
        return NoStatement(f"{file} is no Python that can be parsed")
    except (RecursionError, MemoryError):
        return NoStatement(f"{file} is nested too deep to be parsed")


def _in_source(source: str, stack: Stack) -> Statement | NoStatement:
    tree = ast.parse(source)
    functions = list(_functions(tree, stack))
    if not functions:
        return _changed(tree, stack.frame)
    aliases = aliases_of(tree)
    nodes = [node for function in functions for node in _statements(paths_of(function, aliases), stack)]
    if not nodes:
        return _not_called(stack)
    different = list(dict.fromkeys(nodes))
    text = ast.get_source_segment(source, different[0]) if len(different) == 1 else None
    return Statement(text, stack.frame.file, tuple(sorted({node.lineno for node in different})))


def _statements(paths: Paths, stack: Stack) -> list[ast.stmt | ast.expr]:
    """Return the statements that may have made the call."""
    if stack.calls is None:
        return _at_line(paths, stack.frame.line)
    explained = explain(paths, stack.calls)
    if explained is None or explained.cost > _MOST_COST_A_CALL * explained.calls:
        return []
    return [site.node for site in explained.sites]


def _at_line(paths: Paths, line: int) -> list[ast.stmt | ast.expr]:
    """Return the statements with a call that the line is in, of several within each other the shortest."""
    nodes = {site.node for site in paths.cells if site is not None}
    around = [
        (end - node.lineno, node) for node in nodes if node.lineno <= line <= (end := node.end_lineno or node.lineno)
    ]
    shortest = min((length for length, _ in around), default=0)
    return sorted((node for length, node in around if length == shortest), key=lambda node: node.col_offset)


def _functions(tree: ast.Module, stack: Stack) -> Iterator[_Named | ast.Module]:
    """Yield the functions of the frame's name that begin on its line (decorators count).

    A frame with another line encloses it: one that was running when recording began, or of a stack recorded as text.
    Of several within each other it is the innermost.
    """
    frame = stack.frame
    if frame.function == _MODULE:
        yield tree
        return
    named = [(node, first) for node, first in _all_functions(tree) if _name_of(node) == frame.function]
    told = stack.calls is not None
    beginning = [node for node, first in named if told and frame.line in {first, node.lineno}]
    if beginning or (told and not frame.was_running):
        yield from beginning
        return
    enclosing = [(first, node) for node, first in named if first <= frame.line <= (node.end_lineno or first)]
    latest = max((first for first, _ in enclosing), default=0)
    yield from (node for first, node in enclosing if first == latest)


def _all_functions(tree: ast.Module) -> Iterator[tuple[_Named, int]]:
    """Yield each function with the line on which Python says that it begins."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        elif isinstance(node, ast.Lambda | Comprehension):
            yield node, node.lineno


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    return COMPREHENSIONS.get(type(node), _LAMBDA)


def _changed(tree: ast.Module, frame: StackFrame) -> NoStatement:
    begins = sorted(first for node, first in _all_functions(tree) if _name_of(node) == frame.function)
    where = (
        f"it begins on line {begins[0]}"
        if len(begins) == 1
        else "others of that name do"
        if begins
        else "none has that name"
    )
    return NoStatement(
        f"{frame.file} has changed since, or is another version: no function {frame.function} is on line {frame.line}"
        f" ({where})"
    )


def _not_called(stack: Stack) -> NoStatement:
    frame = stack.frame
    if stack.calls is None:
        return NoStatement(f"{frame.file} has changed since, or is another version: line {frame.line} calls nothing")
    name = stack.calls.until[-1].name
    return NoStatement(f"{frame.function} in {frame.file} holds no call that can have been recorded as {name}")
