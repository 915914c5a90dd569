"""Kernels' names for people: `void at::native::(anonymous namespace)::…` as those who tune kernels would say it.

Names come from traces, so they are untrusted: only the head of one is read, once, from left to right.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

LOOKED_AT = 4096
"""So much of a name is looked at: the time of a pattern can grow with the square of it."""
WIDTH = 60
"""Columns of a short name; a mark that tells equal ones apart comes on top."""

_WRAPPERS = {
    "device_kernel",
    "Kernel",
    "Kernel2",
    "kentry",
    "enable_sm90_or_later",
    "enable_sm90",
    "enable_sm80_to_sm89",
}
"""Kernels that only call the class in their template's arguments."""
_APPLIES = {"gpu_kernel_impl", "gpu_kernel_impl_nocast", "ReduceOp", "func_wrapper_t", "CollectiveMma"} | {
    *("BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor"),
}
"""Arguments that only hold another, which comes after types: what PyTorch and CUTLASS wrap around what is computed."""
_TYPES = {*("float", "double", "bool", "char", "short", "int", "long", "BFloat16", "Half"), "unsigned char"}
_SAYS_NOTHING = {
    *("array", "Array", "TrivialOffsetCalculator", "OffsetCalculator", "LoadWithoutCast", "StoreWithoutCast"),
    *("StoreWithCast", "tuple", "C", "integral_constant", "sequence"),
}
"""Arguments of a template that tell no kernel from another."""
_LEAST = 12
"""A first argument is cut where it has no more room than this, or else left out."""
_DEEPEST = 32
"""Templates nested deeper are not looked at."""
_UNSAID = ("at", "at_cuda_detail", "native", "c10", "std", "")
_ANY = "utf-8", "surrogatepass"
_ANONYMOUS = "(anonymous namespace)"
_LAMBDA_TYPE = re.compile(r"\{lambda\(([^(){}]+)\)#\d+\}[^{}]*$")
_LITERAL = re.compile(r"(-?\d+)(?:u|l|ul|ll|ull)?", re.ASCII)
_LENGTH = re.compile(r"\d{1,4}", re.ASCII)
_NESTED = re.compile(r"N(?:S\w{0,3}?_)?(?=\d)", re.ASCII)


def without_arguments(name: str) -> str:
    """Return the head of a kernel's name up to the list of its function's arguments."""
    name = name[:LOOKED_AT]
    depth, last = 0, ""
    for position, character in enumerate(name):
        if character in "<{":
            depth += 1
        elif character in ">}":
            depth = max(depth - 1, 0)
        elif character == "(" and depth == 0 and (last.isalnum() or last in {"_", ">"}):
            return name[:position]
        last = character
    return name


def short_name(name: str, width: int = WIDTH) -> str:
    """Return a kernel's name at most `width` columns long: library, kernel, and what its template is filled with.

    Kernels that differ may have the same short name; `short_names` tells them apart.
    """
    text = _demangled(name[:LOOKED_AT]) if name.startswith("_Z") else without_arguments(name)
    node = _unwrapped(_parsed(text))
    shown = _rendered(node, width) or name
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def short_names(names: Iterable[str], width: int = WIDTH) -> dict[str, str]:
    """Return short names of kernels that stand in one report: those that would be equal get a mark of the full name."""
    known = {name: short_name(name, width) for name in dict.fromkeys(names)}
    marked = known
    for digits in (4, 8, 32):  # the fewest with which no two marks are equal, nor one the end of another's name
        if len(set(marked.values())) == len(known):
            break
        marked = _marked(known, digits)
    return marked


def _marked(known: Mapping[str, str], digits: int) -> dict[str, str]:
    times = Counter(known.values())
    return {
        name: short if times[short] == 1 else f"{short} ~{blake2b(name.encode(*_ANY)).hexdigest()[:digits]}"
        for name, short in known.items()
    }


@dataclass(slots=True)
class _Node:
    """A name and the arguments of its template."""

    name: str
    arguments: list[_Node] = field(default_factory=list)


def _parsed(text: str) -> _Node:
    """Read a name with its template's arguments; what stands in other brackets belongs to the name."""
    root = _Node("")
    path = [root]
    begin = 0
    for position, character in _separators(text):
        if character == " ":
            if len(path) == 1 and (root.arguments or text[begin:position] == "void"):  # it was the type of the result
                root.name, root.arguments, begin = "", [], position + 1
        elif character == "<" or len(path) > 1:
            path[-1].name += text[begin:position].strip()
            begin = position + 1
            if character != "<":
                path.pop()
            if len(path) > _DEEPEST:
                break
            if character != ">":
                path[-1].arguments.append(_Node(""))
                path.append(path[-1].arguments[-1])
    path[-1].name += text[begin:].strip()
    return root


def _separators(text: str) -> Iterator[tuple[int, str]]:
    depth = 0
    for position, character in enumerate(text):
        if character in "({[":
            depth += 1
        elif character in ")}]":
            depth = max(depth - 1, 0)
        elif depth == 0 and character in "<,> ":
            yield position, character


def _unwrapped(node: _Node) -> _Node:
    while _last(node.name) in _WRAPPERS:
        inner = next((a for a in node.arguments if a.name and not _LITERAL.fullmatch(a.name)), None)
        if inner is None:
            break
        node = inner
    return node


def _rendered(node: _Node, room: int) -> str:
    """Write a kernel; where numbers leave no room for anything else among its template's arguments, without them."""
    name = _outer(node.name)
    telling = _telling(node)
    named = [argument for argument in telling if not _LITERAL.fullmatch(argument.name)]
    shown = _filled(name, telling, room)
    if named and len(named) < len(telling) and shown == _filled(name, telling[: telling.index(named[0])], room, "…"):
        return _filled(name, named, room)
    return shown


def _telling(node: _Node) -> list[_Node]:
    return [a for a in node.arguments if a.name and _last(a.name) not in _SAYS_NOTHING]


def _filled(name: str, arguments: list[_Node], room: int, *more: str) -> str:
    """Write a name, and as many of its template's arguments as there is room for."""
    left = room - len(name) - 2
    if left <= 0:
        return name
    shown: list[str] = []
    for argument in arguments:
        here = left - (2 if shown else 0) - (0 if argument is arguments[-1] and not more else 3)
        text = _argument(argument, here)
        if len(text) > here:
            more = (f"{text[: left - 1]}…",) if not shown and left >= _LEAST else ("…",)
            break
        left -= len(text) + (2 if shown else 0)
        shown.append(text)
    inside = ", ".join([*shown, *more])
    return f"{name}<{inside}>" if inside else name


def _argument(node: _Node, room: int) -> str:
    """Write an argument of a template: what it is, and the type of the elements where one is told."""
    name = node.name.replace(f"{_ANONYMOUS}::", "")
    literal = _LITERAL.fullmatch(name)
    if literal:
        return literal[1]
    if name.startswith("("):  # a value of an enumeration
        return name.rpartition(")")[2] or name
    head = re.split(r"\(|::\{|::operator", name, maxsplit=1)[0]
    if _last(head) in _APPLIES:
        inner = next((a for a in node.arguments if _last(a.name) not in _TYPES), None)
        if inner is not None:
            kind = _last(node.arguments[0].name)
            text = _argument(inner, room)
            return f"{text.partition('<')[0]}({kind})" if kind in _TYPES and "(" not in text else text
    typed = _LAMBDA_TYPE.search(name)
    if typed:
        return f"{_last(head)}({_last(typed[1].partition(',')[0])})"
    return _filled(_last(head), _telling(node), room)


def _outer(name: str) -> str:
    """Return library and kernel of a name, without what lies between them."""
    parts = [part for part in name.replace(f"{_ANONYMOUS}::", "").split("::") if part not in _UNSAID]
    if parts and "elementwise_kernel" in parts[-1]:
        parts[-1] = parts[-1].replace("elementwise_kernel", "elementwise")  # PyTorch's: room for what they compute
    return "::".join(parts if len(parts) < 3 else (parts[0], parts[-1]))


def _last(name: str) -> str:
    return name.rpartition("::")[2]


def _demangled(name: str) -> str:
    """Return the nested name that an Itanium-mangled one begins with; of wrappers, that of their first argument.

    No more is decoded: the types of templates and arguments would take a demangler.
    """
    begin = 3 if name.startswith("_ZN") else 2
    parts, at = _identifiers(name, begin)
    if parts and parts[-1] in _WRAPPERS:
        inner = _NESTED.search(name, at)
        if inner is not None:
            inside, _ = _identifiers(name, inner.end())
            parts = [parts[0], *inside] if inside else parts
    return "::".join(parts) or name


def _identifiers(name: str, at: int) -> tuple[list[str], int]:
    """Read `<length><identifier>` as often as it stands there; return the identifiers and where they end."""
    found: list[str] = []
    while (length := _LENGTH.match(name, at)) is not None:
        end = length.end() + int(length[0])
        found.append(name[length.end() : end])
        at = end
    return ["(anonymous namespace)" if part.startswith("_GLOBAL__N_") else part for part in found if part], at
