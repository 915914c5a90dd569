"""Which class a kernel is of; the patterns are data, in `kernel_classes.toml`."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

import msgspec

from stepscope.kernel_name import without_arguments

UNCLASSIFIED = "unclassified"


class Pattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"kernel_class": "class"}):
    """A class, what its kernels' names hold, and one such name."""

    kernel_class: str
    pattern: str
    example: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kernel: list[Pattern]


@cache
def patterns() -> tuple[Pattern, ...]:
    """Return the patterns in the order in which they are tried."""
    text = (resources.files("stepscope.pipeline.attribute") / "kernel_classes.toml").read_bytes()
    return tuple(msgspec.toml.decode(text, type=_File).kernel)


def kernel_class(kind: str, name: str) -> str:
    """Return the class of GPU work of this kind (`kernel`, `memcpy`, `memset`) and name."""
    if kind != "kernel":
        return kind
    head = without_arguments(name)
    return next((known for expression, known in _compiled() if expression.search(head)), UNCLASSIFIED)


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(p.pattern, re.IGNORECASE), p.kernel_class) for p in patterns())
