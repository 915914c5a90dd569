"""Slowdowns by name: every module here is one, and its docstring explains it."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.lab.parts import Parts

Mode = Literal["graph", "eager"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """A fault that can be switched on."""

    rule: str
    """The rule that must find it, whether it exists yet or not."""
    also: tuple[str, ...] = ()
    """Rules that may find it, too."""
    apply: Callable[[Parts], Parts]
    """Puts the fault into a healthy engine."""
    modes: tuple[Mode, ...] = ("graph", "eager")
    """Where it makes sense."""
    twin: Mode | None = None
    """How the step without it runs; None: in the same way."""


@cache
def names() -> tuple[str, ...]:
    """Return the names of all slowdowns."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


def find(name: str) -> Slowdown:
    """Return a slowdown by its name.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in names():
        raise UsageError(f"--slowdown {name}: known are {', '.join(names())}")
    found = import_module(f"{__name__}.{name.replace('-', '_')}").SLOWDOWN
    assert isinstance(found, Slowdown)  # noqa: S101 -- a module without one is a mistake in this package
    return found


def explain(name: str) -> str:
    """Return what a slowdown does, in a paragraph.

    Raises:
        UsageError: there is none of that name.
    """
    find(name)
    return (import_module(f"{__name__}.{name.replace('-', '_')}").__doc__ or "").strip()
