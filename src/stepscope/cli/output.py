"""Where results go: stdout, or a file that is whole or not there at all."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.report import TableFormat

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO


@contextmanager
def result_stream(path: Path | None) -> Iterator[TextIO]:
    """Yield stdout, or a temporary file that takes the place of `path` once everything is written.

    Raises:
        UsageError: the file cannot be written there.
    """
    if path is None:
        if sys.stdout is None:
            raise UsageError("stdout is closed; name a file with --output")
        yield sys.stdout
        sys.stdout.flush()
        return
    check_writable(path)
    target = Path(os.path.realpath(path))  # a link stays one
    if target.exists() and not target.is_file():
        with _to_device(path) as stream:
            yield stream
        return
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".stepscope-")
    except OSError as error:
        raise UsageError(f"--output {path}: cannot be written ({error.strerror})") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            yield stream
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(target)
    except OSError as error:
        raise UsageError(f"--output {path}: cannot be written ({error.strerror})") from error
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()


@contextmanager
def _to_device(path: Path) -> Iterator[TextIO]:
    """Write to a pipe or device: a file must not take its place."""
    try:
        with path.open("w", encoding="utf-8") as stream:
            yield stream
    except OSError as error:
        raise UsageError(f"--output {path}: cannot be written ({error.strerror})") from error


def check_writable(path: Path | None) -> None:
    """Refuse an output path before any work is done for it.

    Raises:
        UsageError: it is a folder, or its folder does not exist.
    """
    if path is None:
        return
    try:
        is_folder, has_folder = path.is_dir(), path.parent.is_dir()
    except OSError as error:
        raise UsageError(f"--output {path}: cannot be written ({error.strerror})") from error
    if is_folder:
        raise UsageError(f"--output {path}: is a folder; name a file")
    if not has_folder:
        raise UsageError(f"--output {path}: the folder {path.parent} does not exist")


def check_terminal(report_format: TableFormat, path: Path | None) -> None:
    """Refuse to write bytes to a terminal.

    Raises:
        UsageError: that is where they would go.
    """
    to_terminal = path is None and sys.stdout is not None and sys.stdout.isatty()
    if report_format is TableFormat.PARQUET and to_terminal:
        raise UsageError("--format parquet is not for a terminal; name a file with --output")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
