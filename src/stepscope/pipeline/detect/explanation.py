"""What a rule's docstring tells, where a finding says it too: the title, the control and the fixes, written once."""

from __future__ import annotations

import re

from stepscope.document import Fix

_SECTION = re.compile(r"^## (.+)\n", re.MULTILINE)
_FIX = re.compile(r"(?P<kind>configuration|code): (?P<what>.+?)\.(?: Needs (?P<needs>.+)\.)?")


def title_of(explanation: str) -> str:
    """Return what is wrong: the first sentence."""
    return _line(explanation.partition("\n\n")[0]).removesuffix(".")


def control_of(explanation: str) -> str:
    """Return the experiment that would disprove a finding."""
    return _line(_sections(explanation).get("Control", ""))


def fixes_of(explanation: str) -> tuple[Fix, ...]:
    """Return what can be done about it, in the order of the text.

    Each is an item of the last section: ``- configuration: Do this. Needs that.``, or ``- code: …``.

    Raises:
        ValueError: an item has another form.
    """
    return tuple(map(_fix, re.split(r"^- ", _sections(explanation).get("Fixes", ""), flags=re.MULTILINE)[1:]))


def _fix(item: str) -> Fix:
    found = _FIX.fullmatch(_line(item))
    if found is None:
        raise ValueError(f"not a fix: {item}")
    return Fix(what=found["what"], kind=found["kind"], needs=found["needs"])


def _sections(explanation: str) -> dict[str, str]:
    """Return the text of each section by its heading."""
    _, *parts = _SECTION.split(explanation)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _line(text: str) -> str:
    """Return a text in one line, without Markdown's marks of code."""
    return " ".join(text.replace("`", "").split())
