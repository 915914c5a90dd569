"""The three answers there are, each with its reason."""

from __future__ import annotations

from stepscope.document import Answer, DeterminedBy


def yes(reason: str, by: DeterminedBy, at: str | None = None) -> Answer:
    """Return that it is so: how that was come by, and where it can be read."""
    return Answer(answer=True, reason=reason, determined_by=by, at=at)


def no(reason: str, by: DeterminedBy, at: str | None = None) -> Answer:
    """Return that it is not so: how that was come by, and where it can be read."""
    return Answer(answer=False, reason=reason, determined_by=by, at=at)


def untold(reason: str, by: DeterminedBy | None = None, at: str | None = None) -> Answer:
    """Return that it cannot be told, and why; where what was read leaves it open, also where that is."""
    return Answer(answer=None, reason=reason, determined_by=by, at=at)
