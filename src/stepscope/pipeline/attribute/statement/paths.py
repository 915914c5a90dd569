"""The ways through a function: its places in the order in which Python comes by them, with branches and loops."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.pipeline.attribute.statement.evaluation import Comprehension, Evaluation, called_name, name_of
from stepscope.pipeline.attribute.statement.sites import IN_PLACE, SiteKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stepscope.pipeline.attribute.statement.evaluation import Paths

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.Module | Comprehension
"""What Python runs as a function of its own, the body of a class too."""


def paths_of(function: Function, aliases: Mapping[str, frozenset[str]]) -> Paths:
    """Return the ways through a function; it begins at the first cell, and is over at the last.

    Args:
        function: its node; of a comprehension, what runs in the function that Python makes of it.
        aliases: by bare name, other names of what it stands for.

    What may raise is not known, so that every place within a `try` may lead to its handlers.
    """
    walk = _Walk(aliases, _variables(function))
    walk.cell()
    if isinstance(function, ast.Lambda):
        walk.of_statement(function.body, function.body)
    elif isinstance(function, Comprehension):
        walk.node = function
        walk.comprehended(function)
    else:
        walk.block(function.body)
    walk.finish()
    return walk.paths


def aliases_of(tree: ast.Module) -> dict[str, frozenset[str]]:
    """Return the other names of what bare names stand for, from `import … as` and `name = some.function`."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            for name in node.names:
                if name.asname:
                    found.setdefault(name.asname, set()).add(name.name.rpartition(".")[2])
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute | ast.Name):
            stands_for = name_of(node.value)
            for target in node.targets:
                if isinstance(target, ast.Name | ast.Attribute):
                    found.setdefault(name_of(target), set()).add(stands_for)
    return {name: frozenset(others - {name}) for name, others in found.items() if others - {name}}


def _variables(function: Function) -> frozenset[str]:
    """Return the names that a function binds: its parameters and what it assigns."""
    if isinstance(function, ast.Module):
        return frozenset()
    return frozenset(
        node.arg if isinstance(node, ast.arg) else node.id
        for node in ast.walk(function)
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    )


class _Walk(Evaluation):
    """Walks a function in the order of evaluation, and keeps the graph."""

    def __init__(self, aliases: Mapping[str, frozenset[str]], variables: frozenset[str]) -> None:
        super().__init__(aliases, variables)
        self._returning: list[int] = []
        self._loops: list[_Loop] = []
        self._cleanups: list[_Cleanup] = []

    def block(self, statements: Iterable[ast.stmt]) -> None:
        """Add statements that run one after another."""
        for statement in statements:
            self._statement(statement)

    def finish(self) -> None:
        """Add the cell where the function is over."""
        self._from = list(dict.fromkeys([*self._from, *self._returning, *self.paths.pauses]))
        self.cell()

    def _statement(self, node: ast.stmt) -> None:  # noqa: C901, PLR0912 -- a case a kind of statement
        match node:
            case ast.If():
                self.node = node.test
                self._branch(node.test, lambda: self.block(node.body), lambda: self.block(node.orelse))
            case ast.For() | ast.AsyncFor():
                self.of_statement(node.iter, node.iter)
                self._loop(lambda: self._next(node), node)
            case ast.While():
                self._loop(lambda: self._test(node.test), node)
            case ast.With() | ast.AsyncWith():
                self._with(node, 0)
            case ast.Try() | ast.TryStar():
                self._try(node)
            case ast.Match():
                self._match(node)
            case ast.Return() | ast.Raise():
                self.of_statement(node, *ast.iter_child_nodes(node))
                self._leave("return" if isinstance(node, ast.Return) else "raise")
            case ast.Break() | ast.Continue():
                self._leave("break" if isinstance(node, ast.Break) else "continue")
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._definition(node)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                self._assignment(node)
            case ast.Import() | ast.ImportFrom():
                self.node = node
                self._site(SiteKind.IMPORT)
            case ast.Assert():
                self._from, _ = self._test(node.test, node)
            case _:
                self.of_statement(node, *ast.iter_child_nodes(node))

    def _test(self, test: ast.expr, node: ast.stmt | None = None) -> tuple[list[int], list[int]]:
        self.node = node or test
        return self._truth(test)

    def _next(self, node: ast.For | ast.AsyncFor) -> tuple[list[int], list[int]]:
        self._head(node)
        return self._from, self._from

    def _assignment(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        self.node = node
        if isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Subscript):
                self._all((node.target.value, node.target.slice))
                self._site(SiteKind.INDEX)
            elif isinstance(node.target, ast.Attribute):
                self._all((node.target.value,))
                self._site(SiteKind.ATTRIBUTE, node.target.attr)
            self._expression(node.value)
            self._site(SiteKind.OPERATOR, IN_PLACE + type(node.op).__name__)
            self._target(node.target, once_more=True)
            return
        self._expression(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self._target(target)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        """Add what making a function or class calls; its body runs elsewhere."""
        for decorator in node.decorator_list:
            self.of_statement(decorator, decorator)
        bases = node.bases if isinstance(node, ast.ClassDef) else (*node.args.defaults, *node.args.kw_defaults)
        for part in bases:
            if part is not None:
                self.of_statement(part, part)
        if isinstance(node, ast.ClassDef):
            self.node = node.bases[0] if node.bases else node
            self._site(SiteKind.CALL, "__build_class__")
        for decorator in reversed(node.decorator_list):
            self.node = decorator
            self._call_site(None if isinstance(decorator, ast.Call) else decorator)

    def _loop(self, head: Callable[[], tuple[list[int], list[int]]], node: ast.For | ast.AsyncFor | ast.While) -> None:
        begin = self.cell()
        self._from, over = head()
        self._loops.append(_Loop(begin, []))
        self.block(node.body)
        self._lead_to(begin)
        loop = self._loops.pop()
        self._from = over
        self.block(node.orelse)
        self._from = list(dict.fromkeys([*self._from, *loop.breaks]))

    def _with(self, node: ast.With | ast.AsyncWith, number: int) -> None:
        if number == len(node.items):
            self.block(node.body)
            return
        item = node.items[number]
        self.of_statement(item.context_expr, item.context_expr)
        self._site(SiteKind.ENTER)
        if isinstance(node, ast.AsyncWith):
            self._pause(item.context_expr)
        if item.optional_vars is not None:
            self._target(item.optional_vars)
        begin = len(self.paths.cells)
        self._cleanups.append(_Cleanup(len(self._loops)))
        self._with(node, number + 1)
        raising = range(begin, len(self.paths.cells))
        if called_name(item.context_expr) == "suppress":
            self._from = list(dict.fromkeys([*self._from, *raising]))

        def leave() -> None:
            self.node = item.context_expr
            self._site(SiteKind.EXIT)
            if isinstance(node, ast.AsyncWith):
                self._pause(item.context_expr)

        self._clean_up(leave)
        done = self._from
        self._from = list(raising)
        leave()
        self._leave("raise")
        self._from = done

    def _try(self, node: ast.Try | ast.TryStar) -> None:
        if node.finalbody:
            self._cleanups.append(_Cleanup(len(self._loops)))
        begin = self.cell()
        self.block(node.body)
        raising = range(begin, len(self.paths.cells))
        self.block(node.orelse)
        ends = self._from
        self._from = list(raising)
        raised = self.cell()
        for handler in node.handlers:
            self._from = [raised]
            if handler.type is not None:
                self.of_statement(handler.type, handler.type)
            self.block(handler.body)
            ends = [*ends, *self._from]
        self._from = list(dict.fromkeys(ends))
        if node.finalbody:
            self._cleanups[-1].cells.extend(range(begin, len(self.paths.cells)))
            self._clean_up(lambda: self.block(node.finalbody))

    def _match(self, node: ast.Match) -> None:
        self.of_statement(node.subject, node.subject)
        ends = self._from
        for case in node.cases:
            not_taken = [] if _takes_all(case) else self._from
            if case.guard is not None:
                self._from, false = self._test(case.guard)
                not_taken = list(dict.fromkeys([*not_taken, *false]))
            self.block(case.body)
            ends, self._from = [*ends, *self._from], not_taken
        self._from = list(dict.fromkeys([*ends, *self._from]))

    def _leave(self, how: str) -> None:
        """End the way here: what is around gets it, its `finally` first."""
        depth = len(self._loops) if how in {"break", "continue"} else 0
        through = next((c for c in reversed(self._cleanups) if c.loops >= depth), None)
        if through is not None:
            through.cells.extend(self._from)
            through.ways.add(how)
        elif how == "break" and self._loops:
            self._loops[-1].breaks.extend(self._from)
        elif how == "continue" and self._loops:
            self._lead_to(self._loops[-1].head)
        elif how == "return":
            self._returning.extend(self._from)
        self._from = []

    def _clean_up(self, final: Callable[[], object]) -> None:
        """Add what runs however the part before is left, and lead on to where that was to go."""
        cleanup = self._cleanups.pop()
        self._from = list(dict.fromkeys([*self._from, *cleanup.cells]))
        self.cell()
        final()
        done = self._from
        for how in sorted(cleanup.ways):
            self._from = done
            self._leave(how)
        self._from = done


def _takes_all(case: ast.match_case) -> bool:
    return isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None


@dataclass(frozen=True, slots=True)
class _Loop:
    head: int
    breaks: list[int]


@dataclass(frozen=True, slots=True)
class _Cleanup:
    """A `finally`, or the end of a `with`."""

    loops: int
    """Loops around it: leaving one of those within does not pass it."""
    cells: list[int] = field(default_factory=list)
    """Those that lead to it."""
    ways: set[str] = field(default_factory=set)
    """How they were leaving: by `return`, `raise`, `break` or `continue`."""
