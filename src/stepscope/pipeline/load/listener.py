"""Who is told how far reading is."""

from __future__ import annotations

from typing import Protocol


class Listener(Protocol):
    """Shows a person at the terminal what is going on."""

    def begins(self, location: str, size: int | None) -> None:
        """A trace is being read; `size` is its bytes on disk, None where that is not known."""

    def advances(self, bytes_read: int, events: int) -> None:
        """So much of it has been read."""

    def warns(self, sentence: str) -> None:
        """Something was left out."""


class Silent:
    """Shows nothing."""

    def begins(self, location: str, size: int | None) -> None:
        """Ignore that a trace is being read."""

    def advances(self, bytes_read: int, events: int) -> None:
        """Ignore how much has been read."""

    def warns(self, sentence: str) -> None:
        """Ignore what was left out."""
