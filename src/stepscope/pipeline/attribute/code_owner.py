"""Whose a source file is: the user's, or a part of what everybody runs, such as torch and the standard library."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

INTERNAL = frozenset({"torch", "triton"})
"""Packages whose frames are never the place to look at, as those of the standard library; engines are yours."""

_INSTALLED = re.compile(r".*/(?:site|dist)-packages/", re.IGNORECASE)
_STANDARD_LIBRARY = re.compile(r"(?:^|/)(?:lib(?:64)?/python\d(?:\.\d+)?|python\d+/lib)/", re.IGNORECASE)
_IS_ABSOLUTE = re.compile(r"/|[A-Za-z]:/")
_GENERATED = re.compile(r"/torchinductor_[^/]*/|/inductor_cache/|/torch_compile_cache/")
"""Where torch.compile writes the code that it makes."""
_CHECKOUT = re.compile(
    r".*/(?P<file>torch/(?:nn|autograd|utils|cuda|distributed|jit|optim|profiler|fx|amp|_\w+)/.*"
    r"|torch/(?:_\w+|functional|overrides|library|storage|serialization)\.py"
    r"|triton/(?:runtime|compiler|language)/.*)"
)
"""An absolute path into a checkout; a folder that is only called `torch` may be anybody's."""
_TYPED = ("<stdin>", "<ipython-input")
"""What Python calls code that a person typed; other names in `<…>` are of code that a program made."""
_MODULES = sys.stdlib_module_names - {"test", "idlelib", "lib2to3", "turtledemo", "this", "antigravity"}
"""A server's stacks hold none of those left out, and people do write a `test.py`."""


def is_yours(file: str, internal: Collection[str] = INTERNAL) -> bool:
    """Tell whether a file of a stack is the user's: not generated, nor of the standard library or `internal`.

    Args:
        file: a path, relative to an entry of Python's path (as profilers shorten it) or absolute.
        internal: top-level packages that are not the user's.
    """
    path = file.replace("\\", "/")
    if path.startswith("<"):
        return path.startswith(_TYPED)
    if _GENERATED.search(path):
        return False
    installed = _INSTALLED.match(path)
    if installed:
        return _package(path[installed.end() :]) not in internal
    if _STANDARD_LIBRARY.search(path):
        return False
    if not _IS_ABSOLUTE.match(path):
        return _package(path) not in internal and _package(path) not in _MODULES
    checkout = _CHECKOUT.match(path)
    return checkout is None or _package(checkout["file"]) not in internal


def _package(path: str) -> str:
    return path.split("/", 1)[0].removesuffix(".py")
