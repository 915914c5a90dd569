"""Follows the functions of a backend without running them: which values reach a cast of a pool, or a call of `plan()`.

Statements are taken in their order; after a branch a name can be what either side made of it, and a loop's body is gone
through once. Calls of functions and methods whose source is there are followed. What is not known has no value, so that
nothing is claimed of it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from stepscope.probe.source import expressions
from stepscope.probe.source.program import Callee, dotted
from stepscope.probe.source.records import place_of
from stepscope.probe.source.values import (
    NOTHING,
    POOL_GETTERS,
    POOL_PARAMETERS,
    POOLS_GETTERS,
    QUERIES,
    Dtype,
    Dynamic,
    Kind,
    Name,
    Parameter,
    Pool,
    Pools,
    Query,
    Rows,
    Self,
    SelfAttribute,
    Several,
    Value,
    Values,
    elements,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.probe.source.program import ClassInfo, Function, Module, Program
    from stepscope.probe.source.records import Records

_DEEPEST = 5
"""Calls within calls; the engines' backends need three."""
_MOST_FUNCTIONS = 20_000
"""Functions followed for one backend, each once per set of arguments; the largest backend read needs a few hundred."""
_MOST_VALUES = 16
_NOWHERE = ast.FunctionDef("", ast.arguments([], [], None, [], [], None, []), [], [], None, None)
"""The function that an expression outside of every function stands in."""


@dataclass(slots=True)
class Frame:
    """A function while it is followed."""

    callee: Callee
    cls: ClassInfo | None
    """The class whose object `self` is."""
    root: str
    env: dict[str, Values] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()
    returned: set[Value] = field(default_factory=set)
    collected: dict[str, set[Value]] = field(default_factory=dict)
    """What was assigned to attributes of `self`."""
    depth: int = 0

    @property
    def module(self) -> Module:
        """The module that the function stands in."""
        return self.callee.module


class Walk:
    """One backend followed."""

    def __init__(self, program: Program, records: Records) -> None:
        self.program, self.records = program, records
        self._followed: dict[object, Values] = {}
        self._attributes: dict[tuple[int, str], Values | None] = {}
        self._reading: dict[int, bool] = {}
        self._is_recording = True

    @property
    def is_recording(self) -> bool:
        """Whether what is met counts: not while only an attribute is looked up."""
        return self._is_recording

    def follow_class(self, cls: ClassInfo) -> None:
        """Follow every method that an object of a class has."""
        names = dict.fromkeys(name for owner in self.program.lineage(cls) for name in owner.methods)
        for name in names:
            callee = self.program.method(cls, name)
            if callee is not None:
                self.call(callee, cls, {}, name)

    def follow_function(self, module: Module, function: Function) -> None:
        """Follow a function of a module."""
        self.call(Callee(function, module), None, {}, function.name)

    def call(
        self, callee: Callee, cls: ClassInfo | None, given: dict[str, Values], root: str, depth: int = 0
    ) -> Values:
        """Follow a function with these arguments by name, and return what it can return."""
        key = (callee.function, cls and cls.node, frozenset(given.items()), root, self._is_recording)
        if key in self._followed:
            return self._followed[key]
        if depth > _DEEPEST or len(self._followed) > _MOST_FUNCTIONS:
            self.records.gave_up |= len(self._followed) > _MOST_FUNCTIONS
            return NOTHING
        self._followed[key] = NOTHING  # for a function that calls itself
        frame = Frame(callee, cls, root, depth=depth)
        frame.env = _parameters(callee, given)
        if self._is_recording and not given and frozenset({Pool()}) in frame.env.values():  # vLLM's way to hand it over
            arguments = callee.function.args.args
            self.records.reads.add(place_of(arguments[-1], arguments, frame))
        self._run(callee.function.body, frame)
        self._followed[key] = _bounded(frame.returned)
        return self._followed[key]

    def resolve(self, values: Values, frame: Frame) -> Values:
        """Return values with the attributes of `self` looked up."""
        found: set[Value] = set()
        for value in values:
            if isinstance(value, SelfAttribute):
                found |= self.attribute(value.name, frame.cls) or {Name(f"self.{value.name}")}
            else:
                found.add(value)
        return _bounded(found)

    def attribute(self, name: str, cls: ClassInfo | None) -> Values:
        """Return what an attribute of an object of a class can be: what the nearest class that assigns it gives it."""
        if cls is None:
            return NOTHING
        key = (id(cls), name)
        if key not in self._attributes:
            self._attributes[key] = NOTHING  # while it is looked up: an attribute of itself is nothing
            recording, self._is_recording = self._is_recording, False
            try:
                self._attributes[key] = self._assigned(name, cls)
            finally:
                self._is_recording = recording
        return self._attributes[key] or NOTHING

    def _assigned(self, name: str, cls: ClassInfo) -> Values:
        for owner in self.program.lineage(cls):
            found: set[Value] = set()
            if name in owner.constants:
                found |= self.constant(owner.constants[name], owner.module)
            for method in owner.methods.values():
                if method.name == name and any(dotted(one) == "property" for one in method.decorator_list):
                    found |= self.call(Callee(method, owner.module, owner), cls, {}, "")
                if _assigns(method, name):
                    frame = Frame(Callee(method, owner.module, owner), cls, "")
                    frame.env = _parameters(frame.callee, {})
                    self._run(method.body, frame)
                    found |= self.resolve(_bounded(frame.collected.get(name, set())), frame)
            if found:
                return _bounded(found)
        return NOTHING

    def constant(self, value: ast.expr, module: Module) -> Values:
        """Return what a constant of a module or class is."""
        return expressions.evaluate(self, value, Frame(Callee(_NOWHERE, module), None, ""))

    def may_read_pool(self, function: Function) -> bool:
        """Tell whether a function asks for a pool itself: then it is followed whatever it is given."""
        key = id(function)
        if key not in self._reading:
            wanted = POOL_GETTERS | POOLS_GETTERS
            self._reading[key] = any(
                isinstance(node, ast.Attribute) and node.attr in wanted for node in ast.walk(function)
            )
        return self._reading[key]

    def _run(self, body: list[ast.stmt], frame: Frame) -> bool:
        """Follow statements, and tell whether what comes after them is reached."""
        return all(self._statement(statement, frame) for statement in body)

    def _statement(self, node: ast.stmt, frame: Frame) -> bool:  # noqa: C901, PLR0912 -- one case a kind of statement
        match node:
            case ast.Assign():
                values = expressions.evaluate(self, node.value, frame)
                for target in node.targets:
                    self.bind(target, values, frame)
            case ast.AnnAssign(value=ast.expr() as value):
                self.bind(node.target, expressions.evaluate(self, value, frame), frame)
            case ast.AugAssign():
                whole = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
                self.bind(node.target, expressions.evaluate(self, whole, frame), frame)
            case ast.Expr():
                expressions.evaluate(self, node.value, frame)
            case ast.Return():
                if node.value is not None:
                    frame.returned |= expressions.evaluate(self, node.value, frame)
                return False
            case ast.Raise() | ast.Continue() | ast.Break():
                return False
            case ast.If():
                expressions.evaluate(self, node.test, frame)
                return self._branches([(node.body, (node.test, True)), (node.orelse, (node.test, False))], frame)
            case ast.For() | ast.AsyncFor():
                items = expressions.evaluate(self, node.iter, frame)
                self.bind(node.target, elements(items), frame)
                self._branches([(node.body, None), ([], None)], frame)
                self._run(node.orelse, frame)
            case ast.While():
                expressions.evaluate(self, node.test, frame)
                self._branches([(node.body, None), ([], None)], frame)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    values = expressions.evaluate(self, item.context_expr, frame)
                    if item.optional_vars is not None:
                        self.bind(item.optional_vars, values, frame)
                return self._run(node.body, frame)
            case ast.Try() | ast.TryStar():
                reached = self._branches(
                    [(node.body + node.orelse, None), *((one.body, None) for one in node.handlers)], frame
                )
                return self._run(node.finalbody, frame) and reached
            case ast.Match():
                expressions.evaluate(self, node.subject, frame)
                self._branches([(case.body, None) for case in node.cases] + [([], None)], frame)
            case _:
                pass
        return True

    def _branches(self, ways: Iterable[tuple[list[ast.stmt], tuple[ast.expr, bool] | None]], frame: Frame) -> bool:
        before, merged = frame.env, list[dict[str, Values]]()
        for body, condition in ways:
            said = () if condition is None else (_said(*condition),)
            way = replace(frame, env=dict(before), conditions=frame.conditions + said)
            if self._run(body, way):
                merged.append(way.env)
        frame.env = dict(before) if not merged else _union(merged)
        return bool(merged)

    def bind(self, target: ast.expr, values: Values, frame: Frame) -> None:
        """Give names, or an attribute of `self`, these values."""
        match target:
            case ast.Name():
                frame.env[target.id] = _bounded(values)
            case ast.Tuple() | ast.List():
                for at, one in enumerate(target.elts):
                    self.bind(
                        one.value if isinstance(one, ast.Starred) else one, _part(values, at, len(target.elts)), frame
                    )
            case ast.Attribute(value=ast.Name(id=owner)) if Self() in frame.env.get(owner, NOTHING):
                frame.collected.setdefault(target.attr, set()).update(values)
            case _:
                pass


def _parameters(callee: Callee, given: dict[str, Values]) -> dict[str, Values]:
    """Return what the parameters of a function are at its beginning."""
    arguments = callee.function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    env = {argument.arg: _unknown(argument, callee) for argument in every}
    is_static = any(dotted(one) == "staticmethod" for one in callee.function.decorator_list)
    if callee.owner is not None and every and not is_static:
        env[every[0].arg] = frozenset({Self()})
    return {**env, **{name: values for name, values in given.items() if values and name in env}}


def _unknown(argument: ast.arg, callee: Callee) -> Values:
    is_forward = callee.owner is not None and callee.function.name.lstrip("_").startswith("forward")
    if is_forward and argument.arg in POOL_PARAMETERS:
        return frozenset({Pool()})
    if argument.arg in QUERIES:
        return frozenset({Query(Dtype(Kind.QUERY, f"{argument.arg}.dtype"))})
    annotation = argument.annotation
    text = annotation.value if isinstance(annotation, ast.Constant) else annotation and dotted(annotation)
    return frozenset({Parameter(argument.arg, text if isinstance(text, str) else None)})


def _assigns(method: Function, name: str) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(method)
    )


def _part(values: Values, at: int, count: int) -> Values:
    """Return what one of the names can be that values are unpacked to."""
    found: set[Value] = set()
    for value in values:
        if isinstance(value, Several) and len(value.parts) == count:
            found |= value.parts[at]
        else:
            found |= elements(frozenset({value}))
    return frozenset(found)


def _union(ways: list[dict[str, Values]]) -> dict[str, Values]:
    names = {name for way in ways for name in way}
    return {name: _bounded({value for way in ways for value in way.get(name, NOTHING)}) for name in names}


def _bounded(values: Iterable[Value]) -> Values:
    kept = frozenset(values)
    return (
        kept
        if len(kept) <= _MOST_VALUES
        else frozenset(one for one in kept if isinstance(one, Pool | Pools | Several | Rows | Dtype | Dynamic))
    )


def _said(test: ast.expr, holds: bool) -> str:  # noqa: FBT001 -- which side of an `if`
    if not holds and isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return ast.unparse(test.operand)[:200]
    text = ast.unparse(test)[:200]
    return text if holds else f"not ({text})"
