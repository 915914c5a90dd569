"""Signals that end a process: first it takes away what it had half written, then they do."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""SIGINT is Python's own: KeyboardInterrupt."""


class _Ended(BaseException):
    """Unwinds the process as KeyboardInterrupt does, so that what cleans up after itself does so."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def cleaning_up() -> Iterator[None]:
    """Let signals that end the process unwind it first; a second one ends it at once, an ignored one stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python allows handlers in the main thread alone
        return
    taken = [number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _unwind)
    try:
        yield
    except _Ended as ended:
        signal.raise_signal(ended.number)
        raise
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _unwind(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise _Ended(number)
