"""Which statement of a function made a recorded call: the source's calls lined up with the recorded ones."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.pipeline.attribute.stacks import Stack, StackFrame

_SOURCE_LIMIT_BYTES = 4 << 20
_MOST_PARTS = 64
"""No source lies deeper; a hostile name has a million parts."""
_SUBSCRIPT = "index"
"""What a subscript of a tensor is recorded as; one of a dict is not recorded."""


@dataclass(frozen=True, slots=True)
class Statement:
    """The source text of a statement and the line it begins on; several lines where they cannot be told apart."""

    text: str | None
    file: str
    lines: tuple[int, ...]


def find_statement(stack: Stack, folders: Sequence[Path]) -> Statement | None:
    """Return the statement of the innermost function that made the stack's last call.

    The source is looked for below the folders, by the recorded path or the longest end of it that exists there; a
    link that leads out of the folder is not followed. None where no source is found, or where it holds no such
    function at the recorded line, or no such call in it.
    """
    frame = stack.frames[-1]
    for folder in folders:
        for path in _candidates(folder, frame.file):
            found = _in_file(path, frame, stack.calls)
            if found is not None:
                return found
    return None


def _candidates(folder: Path, recorded: str) -> Iterator[Path]:
    parts = [part for part in PurePosixPath(recorded.replace("\\", "/")).parts if part not in {"/", "..", "."}]
    inside = folder.resolve()
    for skip in range(max(len(parts) - _MOST_PARTS, 0), len(parts)):
        path = folder.joinpath(*parts[skip:])
        if path.suffix == ".py" and _is_source(path, inside):
            yield path


def _is_source(path: Path, inside: Path) -> bool:
    try:
        return (
            path.is_file()
            and path.stat().st_size <= _SOURCE_LIMIT_BYTES
            and path.resolve().is_relative_to(inside)  # a link may lead anywhere
        )
    except (OSError, ValueError):  # a recorded name can be longer than a file's may be
        return False


def _in_file(path: Path, frame: StackFrame, calls: Sequence[str]) -> Statement | None:
    try:
        source = path.read_text("utf-8")
        with warnings.catch_warnings(action="ignore"):  # what is odd in the user's source is not ours to say
            return _in_source(source, frame, calls)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # nested too deep is one of the last two
        return None


def _in_source(source: str, frame: StackFrame, calls: Sequence[str]) -> Statement | None:
    tree = ast.parse(source)
    function = _function(tree, frame)
    if function is None:
        return None
    scored = [
        ((_agreed(own, calls) / len(own), _agreed(so_far, calls)), statement)
        for statement, own, so_far in _calls_of(function, calls[-1])
    ]
    best = max((score for score, _ in scored), default=None)
    statements = list(dict.fromkeys(statement for score, statement in scored if score == best))
    if not statements:
        return None
    text = ast.get_source_segment(source, statements[0]) if len(statements) == 1 else None
    return Statement(text, frame.file, tuple(sorted({statement.lineno for statement in statements})))


def _function(tree: ast.Module, frame: StackFrame) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the function of that name that begins on the frame's line (decorators count).

    A function that was already running when recording began has the line that it was at: it encloses that line.
    """
    enclosing = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != frame.function:
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        if frame.line in {first, node.lineno}:
            return node
        if frame.was_running and first <= frame.line <= (node.end_lineno or first):
            enclosing = node
    return enclosing


def _calls_of(function: ast.AST, name: str) -> Iterator[tuple[ast.stmt, list[str], list[str]]]:
    """Yield for each call of that name its simple statement, the calls in it up to there, and those of the function."""
    so_far: list[str] = []
    for statement in _simple_statements(function):
        begin = len(so_far)
        for call in _evaluation_order(statement):
            so_far.append(call)
            if call == name:
                yield statement, so_far[begin:], list(so_far)


def _simple_statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a function, headers of blocks as their expressions, without nested functions' bodies."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(child, ast.stmt) and not hasattr(child, "body"):
            yield child
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            header = [part for part in ast.iter_child_nodes(child) if isinstance(part, ast.expr | ast.withitem)]
            for part in header:
                expression = part.context_expr if isinstance(part, ast.withitem) else part
                yield ast.copy_location(ast.Expr(expression), expression)
            yield from _simple_statements(child)


def _evaluation_order(node: ast.AST) -> Iterator[str]:
    """Yield the names of calls and subscripts in the order in which Python evaluates them."""
    for child in ast.iter_child_nodes(node):
        yield from _evaluation_order(child)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            yield node.func.attr
        elif isinstance(node.func, ast.Name):
            yield node.func.id
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        yield _SUBSCRIPT


def _agreed(sequence: Sequence[str], calls: Sequence[str]) -> int:
    """Return how many of the source's calls, counted back from the last, the recorded ones repeat."""
    agreed = 0
    for expected, recorded in zip(reversed(sequence), reversed(calls), strict=False):
        if expected != recorded:
            break
        agreed += 1
    return agreed
