"""Files of GPUs: those that ship with stepscope, and those in the user's settings, which calibrate writes."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import platformdirs

from stepscope.errors import UsageError
from stepscope.hardware.gpu import FIGURES, Gpu

if TYPE_CHECKING:
    from collections.abc import Mapping

_SUFFIX = ".toml"
_HEADER = (
    "# `stepscope calibrate` keeps here what it measured. Each figure takes the place of the one that ships with\n"
    "# stepscope, on this machine; others may be added by hand, with their source. Without this file the shipped\n"
    "# ones hold again.\n"
)


@cache
def shipped() -> Mapping[str, Gpu]:
    """Return the GPUs that ship with stepscope, by name."""
    folder = resources.files("stepscope.hardware") / "gpus"
    return {
        entry.name.removesuffix(_SUFFIX): msgspec.toml.decode(entry.read_bytes(), type=Gpu)
        for entry in folder.iterdir()
        if entry.name.endswith(_SUFFIX)
    }


def users() -> dict[str, Gpu]:
    """Return the GPUs of the user's settings, by name.

    Raises:
        UsageError: a file there is damaged or cannot be read.
    """
    folder = user_folder()
    paths: list[Path] = []
    with suppress(OSError):  # there is none, or none that this user may see
        paths = [path for path in folder.iterdir() if path.suffix == _SUFFIX and path.is_file()] if folder else []
    return {path.stem.lower(): _read(path) for path in sorted(paths)}


def user_folder() -> Path | None:
    """Return where the user's files are; None where the user has no folder for settings."""
    try:
        folder = Path(platformdirs.user_config_dir("stepscope")) / "gpus"
    except RuntimeError:  # no home: newer versions of platformdirs say so
        return None
    return folder if folder.is_absolute() else None  # and older ones return `~`


def writable_user_folder() -> Path:
    """Return where the user's files are, and make the folder.

    Raises:
        UsageError: there can be none, or nothing can be written there.
    """
    folder = user_folder()
    if folder is None:
        raise UsageError("there is no folder for the user's settings: set HOME or XDG_CONFIG_HOME")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _cannot_be_written(folder, error) from error
    return folder


def write(name: str, gpu: Gpu) -> Path:
    """Write a GPU to the user's settings, whole or not at all, and return its file.

    Raises:
        UsageError: it cannot be written there.
    """
    path = writable_user_folder() / f"{name}{_SUFFIX}"
    temporary: Path | None = None
    try:
        handle, temporary_name = tempfile.mkstemp(dir=path.parent, prefix=".stepscope-")
        temporary = Path(temporary_name)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(_HEADER + to_toml(gpu))
        temporary.replace(path)
    except OSError as error:
        raise _cannot_be_written(path, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return path


def to_toml(gpu: Gpu) -> str:
    """Return a GPU as the text of its file."""
    lines = [
        f"name = {_string(gpu.name)}",
        f"recorded_names = [{', '.join(map(_string, gpu.recorded_names))}]",
    ]
    for field in FIGURES:
        figure = getattr(gpu, field)
        if figure is not None:
            lines += ["", f"[{field}]", f"value = {figure.value!r}", f"source = {_string(figure.source)}"]
    return "\n".join(lines) + "\n"


def _string(text: str) -> str:
    """Return a TOML string; its escapes are JSON's, and DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read(path: Path) -> Gpu:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Gpu)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); it describes a GPU") from error
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path}: is no GPU's file ({error}); correct it or remove it") from error


def _cannot_be_written(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path}: cannot be written ({error.strerror}); XDG_CONFIG_HOME names another place for settings")
