"""The places of expressions, in the order in which Python evaluates them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.pipeline.attribute.statement.sites import Site, SiteKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Comprehension = ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp
COMPREHENSIONS = {
    ast.GeneratorExp: "<genexpr>",
    ast.ListComp: "<listcomp>",
    ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>",
}
"""What Python calls the function that a comprehension is."""


MOST_CELLS = 20_000
"""Ten times as many as the longest functions written by people have; lining up with more takes too long."""


class TooLongError(Exception):
    """A function has more than `MOST_CELLS` cells."""


@dataclass(frozen=True, slots=True)
class Paths:
    """A graph of cells, each a place of the source or nothing: from where a function begins to where it is over."""

    cells: list[Site | None] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)
    """To which cells Python can go on from each; their numbers are greater, but for the head of a loop."""
    pauses: list[int] = field(default_factory=list)
    """The cells at which a generator or coroutine waits; a profiler sees it called anew when it goes on."""


class Evaluation:
    """Goes through expressions as Python does, and keeps the graph of what it comes by."""

    def __init__(self, aliases: Mapping[str, frozenset[str]], variables: frozenset[str]) -> None:
        self.paths = Paths()
        self.node: ast.stmt | ast.expr | None = None
        """The statement or header that places are added for."""
        self._aliases = aliases
        self._variables = variables
        self._from: list[int] = []
        """The cells that lead to the next one; none: it cannot be reached."""

    def cell(self, site: Site | None = None) -> int:
        """Add a cell behind those that lead here; raises `TooLongError` where there are too many."""
        number = len(self.paths.cells)
        if number == MOST_CELLS:
            raise TooLongError
        self.paths.cells.append(site)
        self.paths.after.append([])
        self._lead_to(number)
        self._from = [number]
        return number

    def of_statement(self, node: ast.stmt | ast.expr, *parts: ast.AST | None) -> None:
        """Add the places of expressions, as those of a statement or header."""
        self.node = node
        self._all(parts)

    def comprehended(self, node: Comprehension) -> None:
        """Add what a comprehension does with each item of its first source, which is made before."""
        self._passes(node, node.generators, ready=True)

    def _lead_to(self, cell: int) -> None:
        for number in self._from:
            self.paths.after[number].append(cell)

    def _site(self, kind: SiteKind, name: str = "") -> None:
        assert self.node is not None  # noqa: S101 -- set before any expression is walked
        self.cell(Site(kind, self.node, name))

    def _pause(self, awaited: ast.expr | None = None) -> None:
        """Add where Python leaves for the caller; what is awaited runs from there, also when it goes on."""
        assert self.node is not None  # noqa: S101 -- set before any expression is walked
        name = "" if awaited is None else called_name(awaited)
        self.paths.pauses.append(self.cell(Site(SiteKind.PAUSE, self.node, name, is_open=awaited is not None)))

    def _either(self, *ways: Callable[[], object] | None) -> None:
        """Add ways of which one is taken; None: that nothing is done."""
        start = self._from
        ends: dict[int, None] = {}
        for way in ways:
            self._from = start
            if way is not None:
                way()
            ends |= dict.fromkeys(self._from)
        self._from = list(ends)

    def _target(self, target: ast.expr, *, once_more: bool = False) -> None:
        """Add what storing does; `once_more`: the target's own parts were evaluated before."""
        if isinstance(target, ast.Tuple | ast.List):
            self._site(SiteKind.LOOP)
            for item in target.elts:
                self._target(item)
        elif isinstance(target, ast.Starred):
            self._target(target.value)
        elif isinstance(target, ast.Subscript | ast.Attribute):
            parts = (target.value, target.slice) if isinstance(target, ast.Subscript) else (target.value,)
            self._all(() if once_more else parts)
            self._site(SiteKind.STORE, target.attr if isinstance(target, ast.Attribute) else "")

    def _head(self, node: ast.For | ast.AsyncFor | ast.comprehension) -> None:
        """Add what fetches the next item, and where it goes."""
        self._site(SiteKind.LOOP, called_name(node.iter))
        if isinstance(node, ast.AsyncFor) or (isinstance(node, ast.comprehension) and node.is_async):
            self._pause(node.iter)
        self._target(node.target)

    def _all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            self._expression(node)

    def _expression(self, node: ast.AST | None) -> None:  # noqa: C901 -- a case a kind of expression
        match node:
            case None | ast.Lambda():
                return
            case ast.IfExp():
                self._branch(node.test, lambda: self._expression(node.body), lambda: self._expression(node.orelse))
            case ast.BoolOp():
                decided = self._undecided(node)
                self._expression(node.values[-1])
                self._from = list(dict.fromkeys([*decided, *self._from]))
            case ast.NamedExpr():
                self._expression(node.value)
            case ast.Compare():
                self._compare(node)
            case ast.GeneratorExp() | ast.ListComp() | ast.SetComp() | ast.DictComp():
                self._comprehension(node)
            case ast.Dict():
                self._all(part for pair in zip(node.keys, node.values, strict=True) for part in pair)
            case ast.Call():
                self._call(node)
            case ast.Yield():
                self._expression(node.value)
                self._pause()
            case ast.YieldFrom() | ast.Await():
                self._expression(node.value)
                self._pause(node.value)
            case _:
                self._all(ast.iter_child_nodes(node))
                self._own_site(node)

    def _own_site(self, node: ast.AST) -> None:
        match node:
            case ast.Attribute(ctx=ast.Load()):
                self._site(SiteKind.ATTRIBUTE, node.attr)
            case ast.Subscript(ctx=ast.Load()):
                self._site(SiteKind.INDEX)
            case ast.Subscript() | ast.Attribute():
                self._site(SiteKind.STORE)
            case ast.BinOp() | ast.UnaryOp():
                self._site(SiteKind.TEST if isinstance(node.op, ast.Not) else SiteKind.OPERATOR, type(node.op).__name__)
            case ast.FormattedValue():
                self._site(SiteKind.FORMAT)
            case ast.Starred():
                self._site(SiteKind.LOOP)

    def _call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            self._expression(node.func.value)
            self._site(SiteKind.ATTRIBUTE)  # without its name: what a property of that name returns is not known
        else:
            self._expression(node.func)
        self._all((*node.args, *node.keywords))
        self._call_site(node.func)

    def _call_site(self, called: ast.expr | None) -> None:
        assert self.node is not None  # noqa: S101 -- set before any expression is walked
        name = name_of(called)
        also = self._aliases.get(name, frozenset())
        is_open = isinstance(called, ast.Name) and name in self._variables
        self.cell(Site(SiteKind.CALL, self.node, name, also, is_open))

    def _compare(self, node: ast.Compare) -> None:
        self._expression(node.left)
        for number, (operator, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            if number:
                self._site(SiteKind.TEST)  # a chain ends where one is false
            self._expression(right)
            self._site(SiteKind.OPERATOR, type(operator).__name__)

    def _truth(self, node: ast.expr) -> tuple[list[int], list[int]]:
        """Add the evaluation of a condition; return the cells that lead on where it is true, and where it is false."""
        if isinstance(node, ast.BoolOp):
            decided = self._undecided(node)
            true, false = self._truth(node.values[-1])
            return (true, [*decided, *false]) if isinstance(node.op, ast.And) else ([*decided, *true], false)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self._truth(node.operand)[::-1]
        self._expression(node)
        self._site(SiteKind.TEST)
        if isinstance(node, ast.Constant):
            return (self._from, []) if node.value else ([], self._from)
        return self._from, self._from

    def _undecided(self, node: ast.BoolOp) -> list[int]:
        """Add all values but the last, up to where they decide nothing; return the cells that lead on where they do."""
        decided: list[int] = []
        for value in node.values[:-1]:
            true, false = self._truth(value)
            self._from, known = (true, false) if isinstance(node.op, ast.And) else (false, true)
            decided += known
        return decided

    def _branch(self, test: ast.expr, then: Callable[[], object], otherwise: Callable[[], object]) -> None:
        true, false = self._truth(test)
        self._from = true
        then()
        ends, self._from = self._from, false
        otherwise()
        self._from = list(dict.fromkeys([*ends, *self._from]))

    def _comprehension(self, node: Comprehension) -> None:
        """Add a comprehension, as the function that it is or was, and as the loop that it became in Python 3.12."""
        self._expression(node.generators[0].iter)

        def as_function() -> None:
            self._site(SiteKind.COMPREHENSION, COMPREHENSIONS[type(node)])

        if isinstance(node, ast.GeneratorExp):
            as_function()
        else:
            self._either(as_function, lambda: self.comprehended(node))

    def _passes(self, node: Comprehension, generators: Sequence[ast.comprehension], *, ready: bool = False) -> None:
        if not generators:
            self._all((node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,))
            if isinstance(node, ast.GeneratorExp):
                self._pause()
            return
        if not ready:
            self._expression(generators[0].iter)
        begin = self.cell()
        self._head(generators[0])
        at_head = self._from
        for condition in generators[0].ifs:
            true, self._from = self._truth(condition)
            self._lead_to(begin)
            self._from = true
        self._passes(node, generators[1:])
        self._lead_to(begin)
        self._from = at_head


def called_name(node: ast.expr) -> str:
    """Return the name of what an expression calls; empty where it is no call."""
    return name_of(node.func) if isinstance(node, ast.Call) else ""


def name_of(node: ast.expr | None) -> str:
    """Return a name, or the last part of a dotted one; empty for any other expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
