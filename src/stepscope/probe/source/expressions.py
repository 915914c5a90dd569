"""What an expression can be, and what its calls do to pools on the way."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from stepscope.probe.source import tensors
from stepscope.probe.source.program import Callee, dotted
from stepscope.probe.source.records import PlanCall, place_of
from stepscope.probe.source.values import (
    NOTHING,
    POOL_GETTERS,
    POOL_LISTS,
    POOLS_GETTERS,
    Dtype,
    Dynamic,
    Instance,
    Name,
    Parameter,
    Pool,
    Pools,
    Query,
    Rows,
    Self,
    SelfAttribute,
    Several,
    Text,
    Value,
    Values,
    attribute,
    elements,
    is_pool_object,
)

if TYPE_CHECKING:
    from stepscope.probe.source.walk import Frame, Walk

_PLANS = {"plan", "begin_forward"}
_QUERY_TYPE, _POOL_TYPE = "q_data_type", "kv_data_type"
PLAN_POSITIONS = {_QUERY_TYPE: 10, _POOL_TYPE: 11}
"""Of FlashInfer's `BatchMLAPagedAttentionWrapper.plan`, the same in 0.5.3 to 0.7.4."""
_MLA_ONLY = "head_dim_ckv"
"""An argument that no other wrapper's `plan()` has."""
_FOLLOWED_FOR = (Pool, Pools, Rows, Query, Dtype, SelfAttribute)
"""Arguments that make a call worth following."""


class Given(NamedTuple):
    """A call, and what its arguments can be."""

    node: ast.Call
    positional: list[Values]
    keywords: dict[str, Values]
    """`**`: what was unpacked."""


def evaluate(walk: Walk, node: ast.expr, frame: Frame) -> Values:  # noqa: C901, PLR0911, PLR0912 -- one case a kind of expression
    """Return what an expression can be; nothing: it is not known, or does not matter."""
    match node:
        case ast.Name():
            return _name(walk, node.id, frame)
        case ast.Constant(value=str() as value):
            return frozenset({Text(value)})
        case ast.Attribute():
            owners = evaluate(walk, node.value, frame)
            return _attribute(walk, node, owners, frame)
        case ast.Call():
            return _call(walk, node, frame)
        case ast.Subscript():
            owners = walk.resolve(evaluate(walk, node.value, frame), frame)
            evaluate(walk, node.slice, frame)
            return frozenset(one for owner in owners for one in tensors.subscript(owner, node.slice))
        case ast.IfExp():
            evaluate(walk, node.test, frame)
            return evaluate(walk, node.body, frame) | evaluate(walk, node.orelse, frame)
        case ast.BoolOp():
            return frozenset().union(*(evaluate(walk, value, frame) for value in node.values))
        case ast.NamedExpr():
            frame.env[node.target.id] = evaluate(walk, node.value, frame)
            return frame.env[node.target.id]
        case ast.BinOp():
            return tensors.arithmetic(walk, node, _parts(walk, node, frame), frame)
        case ast.Tuple() | ast.List():
            return frozenset({Several(tuple(evaluate(walk, one, frame) for one in node.elts))})
        case ast.Starred():
            return elements(evaluate(walk, node.value, frame))
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            return _comprehension(walk, node, frame)
        case ast.Lambda():
            return NOTHING
        case _:
            _parts(walk, node, frame)
            return NOTHING


def _comprehension(
    walk: Walk, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, frame: Frame
) -> Values:
    inner = replace(frame, env=dict(frame.env))
    for generator in node.generators:
        walk.bind(generator.target, elements(evaluate(walk, generator.iter, inner)), inner)
        for condition in generator.ifs:
            evaluate(walk, condition, inner)
    return frozenset({Several((evaluate(walk, node.value if isinstance(node, ast.DictComp) else node.elt, inner),))})


def _parts(walk: Walk, node: ast.AST, frame: Frame) -> Values:
    """Follow the expressions inside one, in their order, and return what they can be."""
    found: set[Value] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            found |= evaluate(walk, child, frame)
        elif isinstance(child, ast.keyword):
            found |= _parts(walk, child, frame)
    return frozenset(found)


def _name(walk: Walk, name: str, frame: Frame) -> Values:
    if name in frame.env:
        return frame.env[name]
    constant = frame.module.constants.get(name)
    if isinstance(constant, ast.Attribute | ast.Constant | ast.Name) and not _is_name(constant, name):
        return walk.constant(constant, frame.module)
    return frozenset({Name(name)})


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _attribute(walk: Walk, node: ast.Attribute, owners: Values, frame: Frame) -> Values:
    found: set[Value] = set()
    if any(isinstance(owner, SelfAttribute) for owner in owners):
        owners = walk.resolve(owners, frame)
    for owner in owners:
        match owner:
            case Self():
                found.add(SelfAttribute(node.attr))
            case Name(path) | Parameter(path):
                is_list = node.attr in POOL_LISTS and is_pool_object(path)
                found.add(Pools() if is_list else attribute(path, node.attr))
            case _:
                found |= tensors.attribute(owner, node.attr)
    if not owners and dotted(node.value) is None:
        found.add(attribute(ast.unparse(node.value)[:100], node.attr))
    return frozenset(found)


def _call(walk: Walk, node: ast.Call, frame: Frame) -> Values:
    given = Given(
        node,
        [evaluate(walk, one.value if isinstance(one, ast.Starred) else one, frame) for one in node.args],
        {one.arg or "**": evaluate(walk, one.value, frame) for one in node.keywords},
    )
    function = node.func
    if isinstance(function, ast.Attribute):
        return _method(walk, given, function, frame)
    if isinstance(function, ast.Name) and function.id not in frame.env:
        return _named(walk, given, function.id, frame)
    called = evaluate(walk, function, frame)
    if walk.is_recording and any(isinstance(one, Dynamic) for one in called):
        tensors.record(walk, node, node.args, "dynamic", NOTHING, frame)
    return NOTHING


def _method(walk: Walk, given: Given, function: ast.Attribute, frame: Frame) -> Values:
    name, node = function.attr, given.node
    if _is_super(function.value) and frame.cls is not None and frame.callee.owner is not None:
        callee = walk.program.method(frame.cls, name, after=frame.callee.owner)
        return NOTHING if callee is None else _follow(walk, callee, given, frame, always=True)
    owners = evaluate(walk, function.value, frame)
    if name in POOL_GETTERS | POOLS_GETTERS:
        if walk.is_recording:
            walk.records.reads.add(place_of(node, node.args, frame))
        return frozenset({Pool() if name in POOL_GETTERS else Pools()})
    if Self() in owners and frame.cls is not None:
        callee = walk.program.method(frame.cls, name)
        if callee is not None:
            return _follow(walk, callee, given, frame)
    if name in _PLANS and walk.is_recording:
        _plan(walk, given, walk.resolve(owners, frame), frame)
    callee = _imported(walk, function, frame)
    if callee is not None:
        return _follow(walk, callee, given, frame)
    if name in tensors.METHODS:
        owners = walk.resolve(owners, frame)
    return tensors.method(walk, given, name, owners, frame)


def _imported(walk: Walk, function: ast.Attribute, frame: Frame) -> Callee | None:
    """Return the function that a name with dots means, where its first part is an imported module."""
    first, _, name = (dotted(function) or "").rpartition(".")
    origin = frame.module.imports.get(first)
    if origin is None or first in frame.env:
        return None
    module = walk.program.module(origin[0] if origin[1] is None else f"{origin[0]}.{origin[1]}")
    return None if module is None else walk.program.find_function(module, name)


def _named(walk: Walk, given: Given, name: str, frame: Frame) -> Values:
    node, positional = given.node, given.positional
    if name == "getattr" and len(positional) > 1:
        texts = [one.value for one in positional[1] if isinstance(one, Text)]
        owners = walk.resolve(positional[0], frame)
        if texts:
            return _attribute(walk, ast.Attribute(node.args[0], texts[0], ast.Load()), owners, frame)
        is_pool = any(isinstance(owner, Pool | Pools) for owner in owners)
        return frozenset({Dynamic(ast.unparse(node)[:100]) if is_pool else Name(ast.unparse(node)[:100])})
    cls = walk.program.find_class(frame.module, name)
    if cls is not None or name[:1].isupper():
        return frozenset({Instance(name)})
    callee = walk.program.find_function(frame.module, name)
    return NOTHING if callee is None else _follow(walk, callee, given, frame)


def _follow(walk: Walk, callee: Callee, given: Given, frame: Frame, *, always: bool = False) -> Values:
    every = [*given.positional, *given.keywords.values()]
    is_worth = always or any(isinstance(one, _FOLLOWED_FOR) for values in every for one in values)
    if not is_worth and not walk.may_read_pool(callee.function):
        return NOTHING
    parameters = [*callee.function.args.posonlyargs, *callee.function.args.args]
    has_self = callee.owner is not None and not any(
        dotted(one) == "staticmethod" for one in callee.function.decorator_list
    )
    names = [parameter.arg for parameter in parameters[1 if has_self else 0 :]]
    bound = dict(zip(names, given.positional, strict=False)) | given.keywords
    cls = frame.cls if callee.owner is not None else None
    if cls is None:  # where `self` is another, its attributes are too
        bound = {name: walk.resolve(values, frame) for name, values in bound.items()}
    return walk.call(callee, cls, bound, frame.root, frame.depth + 1)


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _plan(walk: Walk, given: Given, owners: Values, frame: Frame) -> None:
    """Record a call of an MLA wrapper's `plan()`; those of other wrappers and of compiled modules are passed over."""
    classes = {
        owner.cls if isinstance(owner, Instance) else owner.annotation
        for owner in owners
        if isinstance(owner, Instance | Parameter)
    } - {None}
    if classes and not any("MLA" in str(cls) for cls in classes):
        return
    node = given.node
    starred = next((at for at, one in enumerate(node.args) if isinstance(one, ast.Starred)), len(node.args))
    types: dict[str, tuple[ast.expr, Values]] = {}
    for name, position in PLAN_POSITIONS.items():
        for keyword in node.keywords:
            if keyword.arg == name:
                types[name] = keyword.value, given.keywords[name]
        if name not in types and position < starred:
            types[name] = node.args[position], given.positional[position]
    is_unpacked = starred < len(node.args) or "**" in given.keywords
    is_mla = bool(classes) or len(given.positional) > PLAN_POSITIONS[_POOL_TYPE] or _MLA_ONLY in given.keywords
    if not is_mla or (_POOL_TYPE not in types and not is_unpacked):
        return
    place = place_of(node, [argument for argument, _ in types.values()], frame, only_arguments=True)
    query, pool = (walk.resolve(types[name][1] if name in types else NOTHING, frame) for name in PLAN_POSITIONS)
    cls = None if frame.cls is None else frame.cls.name
    is_whole = _POOL_TYPE in types
    walk.records.plans.add(PlanCall(place, node.lineno, query, pool, is_whole, cls, frame.root, frame.conditions))
