"""Text from a trace made safe to print: it is untrusted, and may hold escape codes or invisible characters."""

from __future__ import annotations

import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode's control, format, surrogate, private, unassigned and separator characters."""


_MOST_SHOWN = 4000


def printable(text: str) -> str:
    """Return the text with every character that a terminal would not show replaced by its code, as Python writes it."""
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in _HIDDEN else c for c in text)


def shown(text: str) -> str:
    """Return printable text of a length to be read: a name in a trace can have a million characters."""
    if len(text) > _MOST_SHOWN:
        text = f"{text[: _MOST_SHOWN // 2]} … {text[-_MOST_SHOWN // 2 :]}"
    return printable(text)
