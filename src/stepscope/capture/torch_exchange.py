"""What `stepscope capture torch` and the program that it runs tell each other.

The command tells the program its wishes in environment variables, which also hold without the command. Each Python of
the program tells the command, in a file of its own, what it could do.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

STEPS: Final = "STEPSCOPE_PROFILE_STEPS"
WAIT: Final = "STEPSCOPE_PROFILE_WAIT"
STACKS: Final = "STEPSCOPE_PROFILE_STACKS"
OUTPUT: Final = "STEPSCOPE_PROFILE_OUTPUT"
REPORTS: Final = "STEPSCOPE_PROFILE_REPORTS"
"""The folder of the reports; only the command sets it."""
COMMAND: Final = "STEPSCOPE_PROFILE_COMMAND"
"""The command's process, so that a Python knows whether it is the program or only helps it."""

_MOST = 10**6
"""Steps; a trace of more fits nowhere."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is recorded, and where it is written."""

    steps: int
    wait: int
    """Steps before those; in the last of them the profiler runs already, and throws away what it sees."""
    stacks: bool
    output: Path

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        _between("steps", self.steps, 1)
        _between("wait", self.wait, 0)

    def unless_told(self, environment: Mapping[str, str] = os.environ) -> Wishes:
        """Return these wishes, with those of the environment in their place.

        Raises:
            UsageError: the environment asks for what cannot be.
        """
        return Wishes(
            steps=_number(environment, STEPS, self.steps),
            wait=_number(environment, WAIT, self.wait),
            stacks=_flag(environment, STACKS, default=self.stacks),
            output=Path(environment.get(OUTPUT) or self.output),
        )


def _between(what: str, value: int, least: int) -> None:
    if not least <= value < _MOST:
        raise UsageError(f"{what} {value}: must be at least {least} and below 10^6")


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name)
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_MOST))):
        raise UsageError(f"{name}={text[:40]}: must be a whole number")
    return int(text)


def _flag(environment: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = environment.get(name)
    if not text:
        return default
    if text not in {"0", "1"}:
        raise UsageError(f"{name}={text[:40]}: must be 0 or 1")
    return text == "1"


class Recorded(msgspec.Struct, kw_only=True):
    """A trace that a process wrote, or would have written had there been a step."""

    file: str | None
    steps: int
    asked: int
    wait: int
    module: str | None = None
    """The class whose outermost calls were taken as steps; None where the program marked them."""


class Report(msgspec.Struct, kw_only=True):
    """What one Python of the program could do."""

    python: str
    missing: str | None = None
    """The package without which nothing can be recorded."""
    loaded_torch: bool = False
    recorded: list[Recorded] = msgspec.field(default_factory=list)
    failure: str | None = None
    """Why recording was given up."""


class Reporter:
    """Writes this process's report, anew each time that something is added to it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{os.getpid()}.json"
        self._pid = os.getpid()
        self._report = Report(python=sys.executable)

    def begins(self, *, loaded_torch: bool = False) -> None:
        """Tell that this Python could record."""
        self._report.loaded_torch = loaded_torch
        self._write()

    def adds(self, recorded: Recorded) -> None:
        """Tell what came of a recording."""
        self._report.recorded.append(recorded)
        self._write()

    def takes_back(self) -> None:
        """Tell that what was recorded is no more."""
        self._report.recorded.clear()
        self._write()

    def gives_up(self, reason: str) -> None:
        """Tell why there is no recording."""
        self._report.failure = reason
        self._write()

    def _write(self) -> None:
        """Write it all; a process that was forked off this one has nothing to say."""
        if os.getpid() == self._pid:
            new = self._path.with_suffix(".new")
            new.write_bytes(msgspec.json.encode(self._report))
            new.replace(self._path)


def read_reports(folder: Path) -> list[Report]:
    """Return what the program's processes told; not what one of them was stopped at writing."""
    told = []
    for path in sorted(folder.glob("*.json")):
        with suppress(msgspec.MsgspecError):
            told.append(msgspec.json.decode(path.read_bytes(), type=Report))
    return told


reporter: Reporter | None = Reporter(Path(os.environ[REPORTS])) if os.environ.get(REPORTS) else None
"""To the command that runs this program; None without one."""
