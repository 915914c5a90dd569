"""Text from a trace made safe to print: it is untrusted, and may hold escape codes or invisible characters."""

from __future__ import annotations

import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode's control, format, surrogate, private, unassigned and separator characters."""


def printable(text: str) -> str:
    """Return the text with every character that a terminal would not show replaced by its code, as Python writes it."""
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in _HIDDEN else c for c in text)


def shortened(name: str, limit: int) -> str:
    """Return a kernel's name without its argument list, at most `limit` characters long."""
    name = printable(name).removeprefix("void ")
    name = name[: _arguments_at(name)]
    return name if len(name) <= limit else name[: limit - 1] + "…"


def _arguments_at(name: str) -> int:
    """Return where a function's argument list begins: its first bracket outside `<…>` that ends a name."""
    depth = 0
    for position, character in enumerate(name):
        if character in "<{":
            depth += 1
        elif character in ">}":
            depth -= 1
        elif (
            character == "("
            and depth == 0
            and position
            and (name[position - 1].isalnum() or name[position - 1] in "_>")
        ):
            return position
    return len(name)
