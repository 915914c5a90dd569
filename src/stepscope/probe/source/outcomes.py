"""What a function of an installed package raises or returns for given facts: read, never run.

A test has three results: true, false, and not known. Both ways of an unknown one are followed, and what comes of them
is uncertain; a refusal behind tests that none of the facts stands in is left out, because it speaks of other things.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from stepscope.probe.source.program import dotted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.probe.source.program import Callee

UNKNOWN: Any = type("Unknown", (), {"__repr__": lambda _: "UNKNOWN"})()
Facts = Mapping[str, Any]
"""Dotted names → values, a function's name with `()` → what it answers for its arguments. A last part alone, such as
`qk_nope_head_dim`, stands for that attribute of anything."""
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: bool(a == b),
    ast.NotEq: lambda a, b: bool(a != b),
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
    ast.Lt: lambda a, b: bool(a < b),
    ast.LtE: lambda a, b: bool(a <= b),
    ast.Gt: lambda a, b: bool(a > b),
    ast.GtE: lambda a, b: bool(a >= b),
}
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Mod: lambda a, b: a % b,
    ast.FloorDiv: lambda a, b: a // b,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A `raise`, a failed `assert`, or a `return`."""

    how: Literal["raise", "return"]
    value: Any
    line: int
    is_certain: bool
    is_relevant: bool
    """Whether one of the facts decides about it."""
    text: str


class Reading:
    """One function read for one set of facts."""

    def __init__(self, callee: Callee, facts: Facts) -> None:
        self._callee, self._facts = callee, facts
        self._locals: dict[str, Any] = {}
        self._derived: set[str] = set()
        """Local names whose value was worked out from a fact."""

    def outcomes(self) -> list[Outcome]:
        """Return how the function can end, in the order of its source, up to the first certain one."""
        found: list[Outcome] = []
        for outcome in self._run(self._callee.function.body, is_certain=True, is_relevant=False):
            found.append(outcome)
            if outcome.is_certain:
                break
        return found

    def _run(  # noqa: C901 -- one case a kind of statement
        self, body: list[ast.stmt], *, is_certain: bool, is_relevant: bool
    ) -> Iterator[Outcome]:
        for statement in body:
            how = {"is_certain": is_certain, "is_relevant": is_relevant}
            match statement:
                case ast.Raise():
                    yield Outcome("raise", None, statement.lineno, is_certain, is_relevant, self._said(statement.exc))
                    return
                case ast.Return():
                    value = None if statement.value is None else self.value(statement.value)
                    is_relevant |= statement.value is not None and self._speaks(statement.value)
                    yield Outcome(
                        "return", value, statement.lineno, is_certain, is_relevant, self._said(statement.value)
                    )
                    return
                case ast.Assert():
                    holds = self.value(statement.test)
                    if holds is UNKNOWN or not holds:
                        certain = is_certain and holds is not UNKNOWN
                        relevant = is_relevant or self._decides(statement.test, holds)
                        yield Outcome("raise", None, statement.lineno, certain, relevant, self._said(statement.msg))
                case ast.Assign():
                    for target in statement.targets:
                        self._assign(target, statement.value)
                case ast.AnnAssign(value=ast.expr() as value):
                    self._assign(statement.target, value)
                case ast.If():
                    yield from self._if(statement, **how)
                case ast.With():
                    yield from self._run(statement.body, **how)
                case ast.Try():  # what an exception leads to is not known, so only what is tried is followed
                    yield from self._run([*statement.body, *statement.orelse, *statement.finalbody], **how)
                case _:
                    pass

    def _if(self, node: ast.If, *, is_certain: bool, is_relevant: bool) -> Iterator[Outcome]:
        holds = self.value(node.test)
        is_relevant |= self._decides(node.test, holds)
        if holds is not UNKNOWN:
            yield from self._run(node.body if holds else node.orelse, is_certain=is_certain, is_relevant=is_relevant)
            return
        before = dict(self._locals)
        yield from self._run(node.body, is_certain=False, is_relevant=is_relevant)
        after, self._locals = self._locals, before
        yield from self._run(node.orelse, is_certain=False, is_relevant=is_relevant)
        same = {name: value for name, value in self._locals.items() if name in after and after[name] == value}
        changed = dict.fromkeys((*self._locals, *after), UNKNOWN)
        self._locals = {**changed, **same}

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
        is_opaque = isinstance(value, ast.Call) and self.value(value) is UNKNOWN and not self._is_fact(value)
        speaks = not is_opaque and (self._speaks(value) or bool(self._derived_in(value)))
        self._bind(target, self.value(value))
        self._derived = self._derived | names if speaks else self._derived - names

    def _bind(self, target: ast.expr, value: Any) -> None:  # noqa: ANN401 -- constants of any kind
        if isinstance(target, ast.Name):
            self._locals[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            several = (
                value if isinstance(value, tuple) and len(value) == len(target.elts) else [UNKNOWN] * len(target.elts)
            )
            for one, part in zip(target.elts, several, strict=True):
                self._bind(one, part)

    def value(self, node: ast.expr) -> Any:  # noqa: ANN401, C901, PLR0911 -- one case a kind of expression
        """Return what an expression is for the facts."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name() | ast.Attribute():
                return self._named(node)
            case ast.Tuple() | ast.List() | ast.Set():
                parts = tuple(self.value(one) for one in node.elts)
                return UNKNOWN if UNKNOWN in parts else parts
            case ast.BoolOp():
                return self._bool(node)
            case ast.UnaryOp(op=ast.Not()):
                value = self.value(node.operand)
                return UNKNOWN if value is UNKNOWN else not value
            case ast.UnaryOp(op=ast.USub()):
                value = self.value(node.operand)
                return -value if isinstance(value, int) else UNKNOWN
            case ast.Compare():
                return self._compare(node)
            case ast.BinOp():
                left, right, operator = self.value(node.left), self.value(node.right), _ARITHMETIC.get(type(node.op))
                if operator is None or type(left) is not int or type(right) is not int or right == 0:
                    return UNKNOWN
                return operator(left, right)
            case ast.IfExp():
                test = self.value(node.test)
                return UNKNOWN if test is UNKNOWN else self.value(node.body if test else node.orelse)
            case ast.Call():
                return self._call(node)
            case _:
                return UNKNOWN

    def _named(self, node: ast.Name | ast.Attribute) -> Any:  # noqa: ANN401, PLR0911 -- constants of any kind
        path = dotted(node)
        if path is None:
            return self._facts.get(node.attr, UNKNOWN) if isinstance(node, ast.Attribute) else UNKNOWN
        if path in self._locals:
            return self._locals[path]
        if path in self._facts:
            return self._facts[path]
        first, _, rest = path.partition(".")
        if first == "torch" and rest:
            return path
        constant = self._callee.module.constants.get(first)
        if isinstance(constant, ast.Call) and rest:  # a record of figures, such as the dimensions of a model
            field = next((one.value for one in constant.keywords if one.arg == rest), None)
            return UNKNOWN if field is None else self.value(field)
        if isinstance(constant, ast.Call) and dotted(constant.func) in {"frozenset", "set", "tuple"} and constant.args:
            constant = constant.args[0]
        if isinstance(constant, ast.Constant | ast.Tuple | ast.List | ast.Set) and not rest:
            return self.value(constant)
        return self._facts.get(path.rpartition(".")[2], UNKNOWN) if rest else UNKNOWN

    def _bool(self, node: ast.BoolOp) -> Any:  # noqa: ANN401 -- True, False or UNKNOWN
        values = [self.value(one) for one in node.values]
        is_and = isinstance(node.op, ast.And)
        if any(value is not UNKNOWN and bool(value) is not is_and for value in values):
            return not is_and
        return UNKNOWN if UNKNOWN in values else is_and

    def _compare(self, node: ast.Compare) -> Any:  # noqa: ANN401 -- True, False or UNKNOWN
        values = [self.value(one) for one in (node.left, *node.comparators)]
        results = []
        for operator, left, right in zip(node.ops, values, values[1:], strict=False):
            try:
                unknown = left is UNKNOWN or right is UNKNOWN
                results.append(UNKNOWN if unknown else _COMPARE[type(operator)](left, right))
            except TypeError:
                results.append(UNKNOWN)
        if False in results:
            return False
        return UNKNOWN if UNKNOWN in results else True

    def _call(self, node: ast.Call) -> Any:  # noqa: ANN401 -- constants of any kind
        path = dotted(node.func) or ""
        arguments = [self.value(one) for one in node.args]
        if path == "getattr" and len(node.args) > 1 and isinstance(arguments[1], str):
            return self._facts.get(arguments[1], UNKNOWN)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
            text = self.value(node.func.value)
            return text.startswith(arguments[0]) if isinstance(text, str) and isinstance(arguments[0], str) else UNKNOWN
        answer = self._facts.get(f"{path.rpartition('.')[2]}()", UNKNOWN)
        return answer(*arguments) if callable(answer) else answer

    def _is_fact(self, node: ast.Call) -> bool:
        name = (dotted(node.func) or "").rpartition(".")[2]
        return name == "getattr" or f"{name}()" in self._facts

    def _decides(self, test: ast.expr, holds: Any) -> bool:  # noqa: ANN401 -- True, False or UNKNOWN
        """Tell whether a fact has part in a test: in one that is not known, a fact that is named or not known itself.

        Else what compares a figure worked out from a fact with the shape of a tensor would count.
        """
        derived = self._derived_in(test)
        if holds is UNKNOWN:
            derived = {name for name in derived if self._locals.get(name, UNKNOWN) is UNKNOWN}
        return bool(derived) or self._speaks(test)

    def _derived_in(self, node: ast.expr) -> set[str]:
        return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} & self._derived

    def _speaks(self, node: ast.expr) -> bool:
        """Tell whether an expression names one of the facts."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name | ast.Attribute):
                path = dotted(part) or (part.attr if isinstance(part, ast.Attribute) else "")
                last = path.rpartition(".")[2]
                if path in self._facts or last in self._facts or f"{last}()" in self._facts:
                    return True
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value in self._facts:
                return True
        return False

    def _said(self, node: ast.expr | None) -> str:
        """Return the text of a message, with the values that are known put in."""
        if node is None:
            return ""
        parts = []
        for part in _texts(node):
            if isinstance(part, ast.FormattedValue):
                value = self.value(part.value)
                parts.append("…" if value is UNKNOWN else str(value))
            else:
                parts.append(str(part.value))
        return " ".join("".join(parts).split())[:300]


def _texts(node: ast.AST) -> Iterator[ast.Constant | ast.FormattedValue]:
    """Yield the parts of the messages in an expression, in their order."""
    if isinstance(node, ast.FormattedValue) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child)
