"""What methods, subscripts and arithmetic make of a KV pool: another view, rows, or the whole of it in another type."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from stepscope.probe.source.records import PoolUse, place_of
from stepscope.probe.source.values import (
    NOTHING,
    Dtype,
    Kind,
    Pool,
    Pools,
    Query,
    Rows,
    Several,
    Text,
    Value,
    Values,
    flat,
)

if TYPE_CHECKING:
    from stepscope.probe.source.expressions import Given
    from stepscope.probe.source.records import How
    from stepscope.probe.source.walk import Frame, Walk

_FIXED = {"half": "torch.float16", "bfloat16": "torch.bfloat16", "float": "torch.float32", "double": "torch.float64"}
_CASTS = {"to", "type", "type_as", *_FIXED}
_VIEWS = {
    *(
        "view",
        "reshape",
        "unsqueeze",
        "squeeze",
        "contiguous",
        "transpose",
        "permute",
        "flatten",
        "unflatten",
        "expand",
    ),
    *("detach", "clone", "movedim", "view_as", "data", "T", "mT"),
}
_SPLITS = {"split", "chunk", "unbind", "tensor_split"}
_ROWS = {"index_select", "gather", "take", "take_along_dim", "narrow", "select", "masked_select"}
METHODS = {*_CASTS, *_VIEWS, *_SPLITS, *_ROWS, "copy_"}
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)


def attribute(owner: Value, name: str) -> Values:
    """Return what an attribute of a tensor is."""
    if name == "dtype":
        match owner:
            case Pool(Dtype() as dtype) | Query(dtype):
                return frozenset({dtype})
            case Pool() | Pools() | Rows():
                return frozenset({Dtype(Kind.POOL, "the pool's dtype")})
            case _:
                return NOTHING
    return frozenset({owner}) if name in _VIEWS and isinstance(owner, Pool | Query | Rows) else NOTHING


def subscript(owner: Value, index: ast.expr) -> Values:
    """Return what a subscript of a value is: the whole pool only where its first dimension is left whole."""
    if isinstance(owner, Pools):
        return frozenset({Pool()})
    if isinstance(owner, Several):
        at = index.value if isinstance(index, ast.Constant) else None
        return owner.parts[at] if type(at) is int and -len(owner.parts) <= at < len(owner.parts) else flat(owner)
    if not isinstance(owner, Pool | Query | Rows):
        return NOTHING
    if not isinstance(owner, Pool):
        return frozenset({owner})
    first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
    is_whole = (
        isinstance(first, ast.Slice) and first.lower is None and first.upper is None and first.step is None
    ) or (isinstance(first, ast.Constant) and first.value in {..., None})
    return frozenset({owner if is_whole else Rows()})


def arithmetic(walk: Walk, node: ast.BinOp, parts: Values, frame: Frame) -> Values:
    """Return what an operator gives: with a whole pool on either side it works through the whole of it."""
    if not isinstance(node.op, _ARITHMETIC) or not any(isinstance(part, Pool) for part in parts):
        return NOTHING
    record(walk, node, [node.right], "arithmetic", frozenset({Dtype(Kind.UNKNOWN, "arithmetic")}), frame)
    return frozenset({Pool(Dtype(Kind.UNKNOWN, "arithmetic"))})


def method(walk: Walk, given: Given, name: str, owners: Values, frame: Frame) -> Values:
    """Return what a method of a tensor gives, and record it where it casts a whole pool."""
    node, positional = given.node, given.positional
    if name == "copy_" and positional and any(isinstance(one, Pool) for one in walk.resolve(positional[0], frame)):
        record(walk, node, node.args, "copy", frozenset({Dtype(Kind.UNKNOWN, ast.unparse(node.func)[:100])}), frame)
        return owners
    found: set[Value] = set()
    for owner in owners:
        if name in _CASTS and isinstance(owner, Pool | Query):
            found |= _cast(walk, given, name, owner, frame)
        elif name in _VIEWS and isinstance(owner, Pool | Pools | Query | Rows):
            found.add(owner)
        elif name in _SPLITS and isinstance(owner, Pool):
            found.add(Pools() if owner.dtype is None else owner)
        elif (name in _ROWS and isinstance(owner, Pool)) or (name in METHODS and isinstance(owner, Rows)):
            found.add(Rows())
    return frozenset(found)


def _cast(walk: Walk, given: Given, name: str, owner: Pool | Query, frame: Frame) -> Values:
    node, targets = given.node, _targets(walk, given, name, frame)
    if targets is None:
        return frozenset({owner})  # to a device
    if isinstance(owner, Query):
        return frozenset(Query(target) for target in targets)
    before = owner.dtype or Dtype(Kind.POOL, "")
    changing = frozenset(one for one in targets if one.kind is not before.kind and one.kind is not Kind.FLOAT8)
    if changing:
        record(walk, node, [*node.args, *(one.value for one in node.keywords)], "cast", changing, frame)
    return frozenset(Pool(target if target in changing else owner.dtype) for target in targets)


def _targets(walk: Walk, given: Given, name: str, frame: Frame) -> frozenset[Dtype] | None:
    """Return the types that a cast can be to; None: it moves to a device and casts nothing."""
    node = given.node
    if name in _FIXED:
        return frozenset({Dtype(Kind.OTHER, _FIXED[name])})
    arguments = [walk.resolve(values, frame) for key, values in given.keywords.items() if key in {"dtype", "other"}]
    arguments = arguments or [walk.resolve(values, frame) for values in given.positional[:2]]
    nodes = [one.value for one in node.keywords if one.arg in {"dtype", "other"}] or list(node.args[:2])
    found: set[Dtype] = set()
    for values in arguments:
        for value in values:
            found |= {value} if isinstance(value, Dtype) else set()
            found |= {one for one in attribute(value, "dtype") if isinstance(one, Dtype)}
    if found:
        return frozenset(found)
    texts = [ast.unparse(one) for one in nodes]
    if not nodes or all(_is_device(text, values) for text, values in zip(texts, arguments, strict=False)):
        return None
    return frozenset({Dtype(Kind.UNKNOWN, ", ".join(texts)[:100])})


def _is_device(text: str, values: Values) -> bool:
    return text.endswith("device") or text.startswith("torch.device(") or any(isinstance(one, Text) for one in values)


def record(  # noqa: PLR0913, PLR0917 -- what a record holds
    walk: Walk, node: ast.expr, arguments: list[ast.expr], how: How, target: Values, frame: Frame
) -> None:
    """Record an operation over a whole pool."""
    if walk.is_recording:
        place = place_of(node, arguments, frame)
        cls = None if frame.cls is None else frame.cls.name
        walk.records.uses.add(PoolUse(place, how, target, cls, frame.root, frame.conditions))
