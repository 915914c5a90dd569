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
