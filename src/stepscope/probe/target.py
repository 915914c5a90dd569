"""What is asked about: a URL, a PID or the path of a Python, and the interpreter behind it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from stepscope.errors import UsageError
from stepscope.probe.listener import listener
from stepscope.probe.process import KEPT_VARIABLES, Target, of_process


def find_target(asked: str) -> Target:
    """Return the interpreter that a URL, a PID or a path names.

    Raises:
        UsageError: it is none of them, or not of this machine, or no Python.
        DeviceError: no such process or listener, or it may not be looked at.
        PartNotInstalledError: psutil is not there to look at processes with.
    """
    if re.fullmatch(r"[0-9]{1,10}", asked):
        return of_process(asked, int(asked))
    if "://" in asked or re.fullmatch(r"(?:[^/\s]*|\[[0-9a-fA-F:]+\]):[0-9]{1,5}", asked):
        return of_process(asked, listener(asked))
    return _of_path(asked)


def _of_path(asked: str) -> Target:
    found = shutil.which(asked)
    if found is None:
        what = (
            "is a folder" if Path(asked).is_dir() else "is not executable" if Path(asked).exists() else "does not exist"
        )
        raise UsageError(f"{asked}: {what}; probe takes a server's URL, a PID, or the path of a Python")
    environment = {name: value for name, value in os.environ.items() if name in KEPT_VARIABLES}
    python = str(Path(found).absolute())  # links stay: a virtual environment's Python is one
    notes = (f"PYTHONPATH is this shell's: {environment['PYTHONPATH']}",) if environment.get("PYTHONPATH") else ()
    return Target(asked, python, "it was named", environment=environment, notes=notes)
