"""Which statement of a function made a recorded call: the source's calls lined up with the recorded ones."""

from __future__ import annotations

import ast
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.pipeline.attribute.stacks import CallKind
from stepscope.pipeline.attribute.statement.evaluation import COMPREHENSIONS, MOST_CELLS, Comprehension, TooLongError
from stepscope.pipeline.attribute.statement.explain import explain
from stepscope.pipeline.attribute.statement.files import LIMIT_BYTES, sources, text_of
from stepscope.pipeline.attribute.statement.paths import aliases_of, paths_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stepscope.pipeline.attribute.stacks import Stack, StackFrame
    from stepscope.pipeline.attribute.statement.evaluation import Paths

_MOST_COST_A_CALL = 1
"""Where more of the recording than this, for each call and one more, is not explained, the source is another's."""
_MOST_TEXT = 2000
"""Of a statement no more characters are kept: a table of numbers can be as long as its file."""
_GIVE_SOURCE = "give --source DIR, the folder with the source files that ran"
_RUN_EAGERLY = "record a run without torch.compile"
_RECORD_AGAIN = "record again"
_FROM_FILE = "run the code from a file"
_READ_IT = "read that function in the source"
_Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | Comprehension
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
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
    remedy: str = _GIVE_SOURCE
    """What to do to know it."""


def find_statement(stack: Stack, folders: Sequence[Path]) -> Statement | NoStatement:
    """Return the statement of the innermost function of your code that made the stack's last call.

    Args:
        stack: the stack; its `frame` names the file.
        folders: where the source is looked for, before the file that the trace itself names.
    """
    frame, calls = stack.frame, stack.calls
    if calls is not None and not calls.until:
        why = f"the recorded calls of {frame.function} in {frame.file} overlap, and the op is in none"
        return NoStatement(why, _RECORD_AGAIN)
    if calls is not None and calls.until[-1].kind is CallKind.COMPILED:
        why = f"{frame.function} in {frame.file} ran as torch.compile rewrote it, without its statements"
        return NoStatement(why, _RUN_EAGERLY)
    missing: list[NoStatement] = []
    for path in sources(frame.file, folders):
        found = _in_file(path, stack)
        if isinstance(found, Statement):
            return found
        missing.append(found)
    return missing[0] if missing else _not_found(frame.file)


def _in_file(path: Path, stack: Stack) -> Statement | NoStatement:
    file, function = stack.frame.file, stack.frame.function
    try:
        source = text_of(path)
        if source is None:
            return NoStatement(f"{file} is larger than {LIMIT_BYTES >> 20} MB, too large to be parsed", _READ_IT)
        with warnings.catch_warnings(action="ignore"):  # what is odd in the user's source is not ours to say
            return _in_source(source, stack)
    except OSError as error:
        return NoStatement(f"{file} cannot be read ({error.strerror})")
    except (SyntaxError, ValueError, LookupError):
        return NoStatement(f"{file} is no source that Python {_PYTHON} can parse")
    except (RecursionError, MemoryError):
        return NoStatement(f"{file} is nested too deep to be parsed")
    except TooLongError:
        why = f"{function} in {file} is too long: it has more than {MOST_CELLS:,} calls and operators"
        return NoStatement(why, _READ_IT)


def _in_source(source: str, stack: Stack) -> Statement | NoStatement:
    tree = ast.parse(source)
    ways = _ways(tree, stack)
    if not ways:
        return _changed(tree, stack.frame)
    found = [_statements(paths, begin, stack) for paths, begin in ways]
    nodes = [node for statements in found for node in statements or ()]
    if not nodes:
        return _does_not_fit(stack.frame) if None in found else _not_called(stack)
    different = list(dict.fromkeys(nodes))
    text = ast.get_source_segment(source, different[0]) if len(different) == 1 else None
    if text is not None and len(text) > _MOST_TEXT:
        text = f"{text[:_MOST_TEXT]} …"
    return Statement(text, stack.frame.file, tuple(sorted({node.lineno for node in different})))


def _statements(paths: Paths, begin: Sequence[int], stack: Stack) -> list[ast.stmt | ast.expr] | None:
    """Return the statements that may have made the call; None where the function cannot be what was recorded."""
    if stack.calls is None:
        return _at_line(paths, stack.frame.line)
    explained = explain(paths, stack.calls, begin)
    if explained is None:
        return []
    fits = explained.cost <= _MOST_COST_A_CALL * (explained.calls + 1)
    return [site.node for site in explained.sites] if fits else None


def _at_line(paths: Paths, line: int) -> list[ast.stmt | ast.expr]:
    """Return the statements with a call that the line is in, of several within each other the shortest."""
    nodes = {site.node for site in paths.cells if site is not None}
    around = [
        (end - node.lineno, node) for node in nodes if node.lineno <= line <= (end := node.end_lineno or node.lineno)
    ]
    shortest = min((length for length, _ in around), default=0)
    return sorted((node for length, node in around if length == shortest), key=lambda node: node.col_offset)


def _ways(tree: ast.Module, stack: Stack) -> list[tuple[Paths, list[int]]]:
    """Return the ways through each function that the frame may be of, and the cells from which it can have begun.

    It has the frame's name and begins on its line (decorators count), or is a generator or coroutine that went on from
    there. A frame with another line was running when recording began, or is of a stack recorded as text: of several
    functions around the line, it is the innermost.
    """
    frame, aliases = stack.frame, aliases_of(tree)
    if frame.function == _MODULE:
        return [(paths_of(tree, aliases), [0])]
    around: list[tuple[int, Paths, list[int]]] = []
    for node, first in _all_functions(tree):
        if _name_of(node) == frame.function and first <= frame.line <= (node.end_lineno or first):
            paths = paths_of(node, aliases)
            begin = [0] if frame.line in {first, node.lineno} else []
            around.append((first, paths, begin + _waiting_at(paths, frame.line)))
    if stack.calls is not None:
        begun = [(paths, begin) for _, paths, begin in around if begin]
        if begun or not frame.was_running:
            return begun
    latest = max((first for first, _, _ in around), default=0)
    return [(paths, [0]) for first, paths, _ in around if first == latest]


def _waiting_at(paths: Paths, line: int) -> list[int]:
    sites = [(cell, paths.cells[cell]) for cell in paths.pauses]
    return [cell for cell, site in sites if site and site.node.lineno <= line <= (site.node.end_lineno or 0)]


def _all_functions(tree: ast.Module) -> Iterator[tuple[_Named, int]]:
    """Yield each function with the line on which Python says that it begins."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node, min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        elif isinstance(node, ast.Lambda | Comprehension):
            yield node, node.lineno


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    return COMPREHENSIONS.get(type(node), _LAMBDA)


def _not_found(file: str) -> NoStatement:
    if file.startswith("<"):  # as `<stdin>` and `<string>`
        return NoStatement(f"{file} is no file, but code that was typed in or made by a program", _FROM_FILE)
    return NoStatement(f"{file} was not found")


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


def _does_not_fit(frame: StackFrame) -> NoStatement:
    what = f"what {frame.function} called is not what its source there calls"
    return NoStatement(f"{frame.file} has changed since, or is another version: {what}")
