"""What in a source can show in a recording: each call, and each expression that calls something without saying so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from stepscope.pipeline.attribute.stacks import Call, CallKind

if TYPE_CHECKING:
    import ast
    from collections.abc import Mapping


class SiteKind(StrEnum):
    """What stands in the source."""

    CALL = "call"
    ATTRIBUTE = "attribute"
    """One that is read: a property's function may run, as where one is stored."""
    OPERATOR = "operator"
    INDEX = "index"
    STORE = "store"
    TEST = "test"
    """Of a condition: a tensor's truth is read."""
    LOOP = "loop"
    """The head of a `for`, before each pass; also what unpacks a value."""
    ENTER = "enter"
    EXIT = "exit"
    COMPREHENSION = "comprehension"
    """A function of its own: always for a generator, for the others until Python 3.11."""
    PAUSE = "pause"
    """Of a generator or coroutine, which leaves for its caller here; open: something else runs in its place."""
    FORMAT = "format"
    IMPORT = "import"


@dataclass(frozen=True, slots=True)
class Site:
    """One place of a source that can show in a recording."""

    kind: SiteKind
    node: ast.stmt | ast.expr
    """The simple statement, or the header of a block, that it is in."""
    name: str = ""
    """Of a call or attribute, as the source writes it; of an operator its node's; empty: called by no name."""
    also: frozenset[str] = frozenset()
    """Other names of what a bare name stands for: it was imported or assigned under that name."""
    is_open: bool = False
    """Whether the name is a parameter or local variable, which may be any function."""


FAR = 3
"""The cost of a call that nothing in the source explains."""
ODD = 1
"""The cost of one that is explained less well than by its name."""
_UNSEEN = 2
"""The cost of passing over a call that must have been recorded."""
_OPEN = 2
"""The cost of a C function behind a variable, or of any function but `__init__` where a class is made."""

_NEVER_RECORDED = {
    *("bool", "bytearray", "bytes", "classmethod", "complex", "dict", "enumerate", "filter", "float", "frozenset"),
    *("int", "list", "map", "memoryview", "object", "property", "range", "reversed", "set", "slice", "staticmethod"),
    *("str", "super", "tuple", "type", "zip"),
}
"""Types written in C: a call of one is no call of a function."""
_LAMBDA = "<lambda>"
_GENERATOR = "<genexpr>"
"""It runs anew for each item."""
_OF_CLASS = {"cls", "__class__"}
"""Names of a class that are not written as one."""
_CONSTRUCTION = {"__new__", "__init__", "__call__", "__post_init__"}
_CONVERSION = {
    *("__iter__", "__next__", "__len__", "__length_hint__", "__getitem__", "__hash__", "__eq__"),
    *("__str__", "__repr__", "__format__", "__bool__", "__int__", "__index__", "__float__", "__complex__", "__bytes__"),
}
"""What a type written in C calls of the object that it is given."""
_CASTS = {"float", "half", "bfloat16", "double", "int", "long", "short", "bool", "type", "type_as", "cpu", "cuda"}
"""Methods of a tensor that run `aten::to`."""
_TENSOR_VIEWS = {"T", "mT", "H", "mH", "real", "imag", "data", "grad", "numpy_T", "matrix_H"}
_INDEX_OPS = {
    *("index", "slice", "select", "unsqueeze", "alias", "view", "expand", "narrow", "as_strided"),
    *("item", "_local_scalar_dense", "lift_fresh", "detach_"),
}
_STORE_OPS = _INDEX_OPS | {"index_put_", "copy_", "fill_", "masked_fill_", "to"}
_READ_OPS = {"is_nonzero", "item", "_local_scalar_dense"}
_UNPACK_OPS = {"unbind", "select"}
_OPERATORS: Mapping[str, tuple[str, set[str]]] = {
    "Add": ("add", {"add"}),
    "Sub": ("sub", {"sub", "rsub"}),
    "Mult": ("mul", {"mul"}),
    "Div": ("truediv", {"div", "true_divide", "reciprocal", "mul"}),
    "FloorDiv": ("floordiv", {"floor_divide"}),
    "Mod": ("mod", {"remainder"}),
    "Pow": ("pow", {"pow"}),
    "MatMult": ("matmul", {"matmul"}),
    "BitAnd": ("and", {"bitwise_and", "__and__"}),
    "BitOr": ("or", {"bitwise_or", "__or__"}),
    "BitXor": ("xor", {"bitwise_xor", "__xor__"}),
    "LShift": ("lshift", {"bitwise_left_shift", "__lshift__"}),
    "RShift": ("rshift", {"bitwise_right_shift", "__rshift__"}),
    "USub": ("neg", {"neg"}),
    "UAdd": ("pos", {"positive"}),
    "Invert": ("invert", {"bitwise_not"}),
    "Eq": ("eq", {"eq"}),
    "NotEq": ("ne", {"ne"}),
    "Lt": ("lt", {"lt", "gt"}),
    "LtE": ("le", {"le", "ge"}),
    "Gt": ("gt", {"gt", "lt"}),
    "GtE": ("ge", {"ge", "le"}),
    "In": ("contains", {"eq", "any"}),
    "NotIn": ("contains", {"eq", "any"}),
    "Is": ("", set()),
    "IsNot": ("", set()),
}
"""By its node, what an operator's method is called between the underlines, and its ops; with `=` they end in `_`."""
IN_PLACE = "in-place "
"""What the name of an operator with an assignment begins with."""
_OPS: Mapping[SiteKind, set[str]] = {
    SiteKind.ATTRIBUTE: _TENSOR_VIEWS,
    SiteKind.INDEX: _INDEX_OPS,
    SiteKind.STORE: _STORE_OPS,
    SiteKind.TEST: _READ_OPS,
    SiteKind.LOOP: _UNPACK_OPS,
    SiteKind.FORMAT: _READ_OPS,
}
_LOOKED_UP = {"__hash__", "__eq__"}
_METHODS: Mapping[SiteKind, set[str]] = {
    SiteKind.ATTRIBUTE: {"__getattr__", "__getattribute__", "__get__"},
    SiteKind.INDEX: {"__getitem__", "__missing__", "__class_getitem__", *_LOOKED_UP},
    SiteKind.STORE: {"__setitem__", "__setattr__", "__delitem__", "__delattr__", "__set__", *_LOOKED_UP},
    SiteKind.TEST: {"__bool__", "__len__"},
    SiteKind.LOOP: {"__iter__", "__next__", "__getitem__", "__aiter__", "__anext__"},
    SiteKind.ENTER: {"__enter__", "__aenter__"},
    SiteKind.EXIT: {"__exit__", "__aexit__"},
    SiteKind.FORMAT: {"__format__", "__str__", "__repr__"},
    SiteKind.PAUSE: {"__await__", "__iter__", "__next__"},
    SiteKind.IMPORT: {"_handle_fromlist", "_find_and_load", "_lock_unlock_module", "parent", "__getattr__"},
}
"""The methods behind each kind of expression, where a class defines them in Python."""


def cost(site: Site, call: Call) -> int | None:
    """Return how odd it would be that this place made that call: 0 where it is as expected; None: it cannot have."""
    if call.kind is CallKind.OP:
        return _cost_of_op(site, call.name)
    if site.kind is SiteKind.CALL:
        return _cost_of_call(site, call)
    if call.kind is CallKind.MODULE or (call.kind is CallKind.BUILT_IN and not _is_method(call.name)):
        return None
    if call.name in _methods_of(site):
        return 0
    return ODD if _runs_others(site) and not _is_method(call.name) else None


def passing(site: Site, *, built_ins: bool) -> int:
    """Return how odd it would be that this place was passed and nothing was recorded.

    Args:
        site: the place.
        built_ins: whether calls of functions written in C are in the recording.
    """
    if site.kind is not SiteKind.CALL or site.name in _NEVER_RECORDED or _is_type(site.name):
        return 0
    return _UNSEEN if built_ins and site.name else ODD


def stays(site: Site, call: Call) -> bool:
    """Tell whether the place can make another call after that one: an index several ops, a class `__init__` too."""
    if site.kind is SiteKind.CALL:
        return call.kind is CallKind.OP or call.name in _CONSTRUCTION or site.name in _NEVER_RECORDED
    return call.name == _GENERATOR or site.kind in {SiteKind.INDEX, SiteKind.STORE, SiteKind.LOOP, SiteKind.IMPORT}


def elsewhere(call: Call) -> int:
    """Return the cost of a call that no place of the source made: Python calls special methods where it likes."""
    return ODD if call.kind is CallKind.FUNCTION and _is_method(call.name) else FAR


def _runs_others(site: Site) -> bool:
    """Tell whether generators or coroutines go on here that may have been made anywhere."""
    return site.kind is SiteKind.LOOP or (site.kind is SiteKind.PAUSE and site.is_open)


def _methods_of(site: Site) -> set[str]:
    """Return the names of Python functions that an expression may call without saying so."""
    if site.kind is SiteKind.OPERATOR:
        stem, _ = _OPERATORS[site.name.removeprefix(IN_PLACE)]
        return {f"__{stem}__", f"__r{stem}__", f"__i{stem}__"} | (_LOOKED_UP if stem == "contains" else set())
    methods = _METHODS.get(site.kind, set())
    if site.kind in {SiteKind.COMPREHENSION, SiteKind.ATTRIBUTE, SiteKind.STORE}:
        return methods | {site.name}
    return methods | {site.name, _GENERATOR} if _runs_others(site) else methods  # a pass resumes a generator


def _cost_of_call(site: Site, call: Call) -> int | None:
    name = call.name
    if name == site.name or name in site.also or (name == _LAMBDA and not site.name):
        return 0
    if call.kind is CallKind.BUILT_IN:
        return _OPEN if site.is_open or not site.name else None
    if call.kind is CallKind.MODULE:
        return ODD if _is_type(site.name) else 0
    if name in _CONSTRUCTION:
        return 0 if _is_type(site.name) or not site.name or name == "__call__" else ODD
    if _is_method(name):
        return 0 if site.name in _NEVER_RECORDED and name in _CONVERSION else None
    return _OPEN if _is_type(site.name) else ODD  # a decorator's function, or one that the source calls otherwise


def _cost_of_op(site: Site, op: str) -> int | None:
    if site.kind is SiteKind.CALL:
        if op == site.name or (op == "to" and site.name in _CASTS):
            return 0
        if op in _READ_OPS | _UNPACK_OPS and site.name in _NEVER_RECORDED:
            return 0
        return ODD
    expected = _ops_of_operator(site.name) if site.kind is SiteKind.OPERATOR else _OPS.get(site.kind)
    if expected is None:
        return None
    if op in expected:
        return 0
    return None if site.kind is SiteKind.ATTRIBUTE else ODD


def _ops_of_operator(name: str) -> set[str]:
    _, plain = _OPERATORS[name.removeprefix(IN_PLACE)]
    return {f"{op.removesuffix('_')}_" for op in plain} | ({"matmul"} & plain) if name.startswith(IN_PLACE) else plain


def _is_method(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_type(name: str) -> bool:
    """Tell whether a name is written as a class's: making an object is recorded only where Python code does it."""
    return name.lstrip("_")[:1].isupper() or name in _OF_CLASS
