"""Classes and functions of a package: found by name, across files, through imports and base classes."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.probe.source.files import ProcessFiles, SourceFile

_MOST_STEPS = 24
"""Of re-exports and of base classes: no engine has as many."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False, slots=True)
class Module:
    """What a file defines at its top."""

    name: str
    file: SourceFile
    classes: dict[str, ClassInfo] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """Name here → module, and the name there; None: the module itself."""
    constants: dict[str, ast.expr] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class ClassInfo:
    """A class statement, and what its body holds."""

    name: str
    node: ast.ClassDef
    module: Module
    methods: dict[str, Function] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class Callee:
    """A function that can be followed: where it stands, and in which class."""

    function: Function
    module: Module
    owner: ClassInfo | None = None


class Program:
    """Packages of one process, read file by file as they are asked for."""

    def __init__(self, files: ProcessFiles, folders: dict[str, str]) -> None:
        """Take the folder of each top-level package, as the process sees it."""
        self._files, self._folders = files, folders
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """Return a module by its dotted name; None: it is of no package here, or cannot be read."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> Module | None:
        top, _, rest = name.partition(".")
        if top not in self._folders:
            return None
        path = f"{self._folders[top]}/{rest.replace('.', '/')}" if rest else self._folders[top]
        for candidate in (f"{path}.py", f"{path}/__init__.py"):
            source = self._files.source(candidate) if rest or candidate.endswith("/__init__.py") else None
            if source is not None:
                return _of_file(name, source)
        return None

    def find_class(self, module: Module, name: str) -> ClassInfo | None:
        """Return what a name in a module means, if that is a class of these packages."""
        found = self._find(module, name)
        return found if isinstance(found, ClassInfo) else None

    def find_function(self, module: Module, name: str) -> Callee | None:
        """Return what a name in a module means, if that is a function of these packages."""
        found = self._find(module, name)
        return found if isinstance(found, Callee) else None

    def _find(self, module: Module, name: str) -> ClassInfo | Callee | None:
        for _ in range(_MOST_STEPS):
            if name in module.classes:
                return module.classes[name]
            if name in module.functions:
                return Callee(module.functions[name], module)
            origin, there = module.imports.get(name, (None, None))
            following = None if origin is None or there is None else self.module(origin)
            if following is None or there is None:
                return None
            module, name = following, there
        return None

    def lineage(self, cls: ClassInfo) -> list[ClassInfo]:
        """Return a class and its bases that are known, nearest first: depth first, as Python but for diamonds."""
        found: list[ClassInfo] = []
        waiting = [cls]
        while waiting and len(found) < _MOST_STEPS:
            nearest = waiting.pop(0)
            if nearest in found:
                continue
            found.append(nearest)
            bases = (self.find_class(nearest.module, name) for name in _base_names(nearest.node))
            waiting = [base for base in bases if base is not None] + waiting
        return found

    def method(self, cls: ClassInfo, name: str, after: ClassInfo | None = None) -> Callee | None:
        """Return what a class calls by a method's name; `after`: what `super()` in that class calls."""
        lineage = self.lineage(cls)
        if after is not None and after in lineage:
            lineage = lineage[lineage.index(after) + 1 :]
        for owner in lineage:
            if name in owner.methods:
                return Callee(owner.methods[name], owner.module, owner)
        return None


def dotted(node: ast.expr) -> str | None:
    """Return a name with its attributes as it is written, `a.b.c`; None: it is something else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _base_names(node: ast.ClassDef) -> Iterator[str]:
    for base in node.bases:
        name = dotted(base.value if isinstance(base, ast.Subscript) else base)  # Generic[T]
        if name is not None:
            yield name


def _of_file(name: str, source: SourceFile) -> Module:
    module = Module(name, source)
    for statement in _top(source.tree.body):
        if isinstance(statement, ast.ClassDef):
            module.classes[statement.name] = _of_class(statement, module)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            module.functions[statement.name] = statement
        elif isinstance(statement, ast.ImportFrom):
            origin = _absolute(module, statement)
            for alias in statement.names:
                module.imports[alias.asname or alias.name] = (origin, alias.name)
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                module.imports[alias.asname or alias.name] = (alias.name, None)
        else:
            module.constants.update(_constants(statement))
    return module


def _of_class(node: ast.ClassDef, module: Module) -> ClassInfo:
    found = ClassInfo(node.name, node, module)
    for statement in _top(node.body):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            found.methods[statement.name] = statement
        else:
            found.constants.update(_constants(statement))
    return found


def _constants(statement: ast.stmt) -> dict[str, ast.expr]:
    targets: list[ast.expr]
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets, value = [statement.target], statement.value
    elif isinstance(statement, ast.Assign):
        targets, value = statement.targets, statement.value
    else:
        return {}
    return {target.id: value for target in targets if isinstance(target, ast.Name)}


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, also those under `if`, `try` and `with`: imports often stand there."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If):
            yield from _top(statement.body)
            yield from _top(statement.orelse)
        elif isinstance(statement, ast.With):
            yield from _top(statement.body)
        elif isinstance(statement, ast.Try):
            for block in (statement.body, *(handler.body for handler in statement.handlers), statement.orelse):
                yield from _top(block)


def _absolute(module: Module, statement: ast.ImportFrom) -> str:
    if not statement.level:
        return statement.module or ""
    parts = module.name.split(".")
    is_package = module.file.path.endswith("/__init__.py")
    kept = parts[: len(parts) - statement.level + is_package]
    return ".".join([*kept, *([statement.module] if statement.module else [])])
