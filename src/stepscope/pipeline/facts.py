"""What a user tells of a recorded run, because its trace does not hold it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.hardware import find_gpu
from stepscope.model import Deployment, Served
from stepscope.pipeline.attribute.code_owner import INTERNAL

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Self, Unpack


class Options(Served, total=False):
    """The facts as keyword arguments of `diagnose`, `what_if` and `compare`."""

    context: int | None
    """Live tokens of a request."""
    gpu: str | None
    """A GPU's name; None: the one that the trace recorded."""
    sources: Sequence[str | Path]
    """Folders in which the recorded source files are looked for."""
    internal: Collection[str]
    """Packages whose functions are not your code, besides the standard library; an engine's are, unless it is named
    here."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts, each checked before any trace is read."""

    deployment: Deployment
    gpu: str | None
    sources: Sequence[Path]
    internal: Collection[str]

    @classmethod
    def of(
        cls,
        *,
        context: int | None = None,
        gpu: str | None = None,
        sources: Sequence[str | Path] = (),
        internal: Collection[str] = INTERNAL,
        **served: Unpack[Served],
    ) -> Self:
        """Check the options.

        Raises:
            UsageError: a path or name does not exist, or an option says nothing without another.
        """
        # a trace records its own types: whoever names others is told that there is no such option
        deployment = Deployment.of(context=context, weights=None, kv_dtype=None, **served)
        folders = [_folder(source) for source in sources]
        find_gpu(gpu, None)
        return cls(deployment, gpu, folders, internal)


def _folder(path: str | Path) -> Path:
    folder = Path(path)
    try:
        exists = folder.is_dir()
    except OSError as error:
        raise UsageError(f"--source {path}: cannot be read ({error.strerror})") from error
    if not exists:
        raise UsageError(f"--source {path}: no such folder")
    return folder
