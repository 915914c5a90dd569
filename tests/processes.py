"""stepscope as a process of its own, and what bad input must be answered with."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def process(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a process of its own."""
    command = [sys.executable, "-W", "error", "-m", "stepscope", *map(str, arguments)]
    return subprocess.run(  # noqa: S603 -- our own command
        command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **environment}
    )


def is_one_sentence(text: str) -> bool:
    """One line, from stepscope, without a traceback or an escape code."""
    return (
        text.startswith("stepscope: ")
        and text.endswith("\n")
        and len(text.splitlines()) == 1
        and "Traceback" not in text
        and "\x1b" not in text
    )
