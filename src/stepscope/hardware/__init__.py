"""What a GPU can do: one data file each in `gpus/`, unit in the key, source beside the value.

Files in the user's settings, which `stepscope calibrate` writes, add to these and go before them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.hardware import files
from stepscope.hardware.collectives import BestKnown, best_known
from stepscope.hardware.files import writable_user_folder
from stepscope.hardware.gpu import FIGURES, Figure, Gpu

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "FIGURES",
    "BestKnown",
    "Figure",
    "Gpu",
    "best_known",
    "find_gpu",
    "gpu_names",
    "keep",
    "name_of",
    "writable_user_folder",
]


def gpu_names() -> list[str]:
    """Return the names that `--gpu` takes."""
    return sorted(_known())


def find_gpu(name: str | None, recorded_name: str | None) -> Gpu | None:
    """Return a GPU by its name, or else by the name that the trace recorded.

    A recorded name without a data file gives a GPU without figures; no name at all gives None.

    Raises:
        UsageError: there is no data file for `name`, or one of the user's files is damaged.
    """
    known = _known()
    if name is not None:
        if name.lower() not in known:
            raise UsageError(f"--gpu {name}: unknown GPU; known are {', '.join(sorted(known))}")
        return known[name.lower()]
    if recorded_name is None:
        return None
    of_that_name = (gpu for gpu in known.values() if recorded_name in gpu.recorded_names)
    return next(of_that_name, Gpu(recorded_name, [recorded_name]))


def name_of(recorded_name: str) -> str:
    """Return the name of the GPU that traces call so: that of its data file, or one made of the recorded name."""
    of_that_name = (name for name, gpu in _known().items() if recorded_name in gpu.recorded_names)
    return next(of_that_name, re.sub(r"[^a-z0-9.]+", "-", recorded_name.lower()).strip("-.") or "gpu")


def keep(name: str, gpu: Gpu) -> Path:
    """Keep figures of a GPU in the user's settings, beside those that are there, and return their file.

    Raises:
        UsageError: the file there is damaged, or nothing can be written there.
    """
    kept = files.users().get(name)
    return files.write(name, kept.overlaid(gpu) if kept else gpu)


def _known() -> dict[str, Gpu]:
    """Return every GPU by its name, the user's first."""
    shipped, users = files.shipped(), files.users()
    own = {name: shipped[name].overlaid(gpu) if name in shipped else gpu for name, gpu in users.items()}
    return own | {name: gpu for name, gpu in shipped.items() if name not in own}
