"""What an interpreter's files tell where it cannot be run: in a container that may be read but not entered."""

from __future__ import annotations

from importlib.metadata import PathDistribution
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from stepscope.probe.packages import DISTRIBUTIONS, MODULES
from stepscope.probe.run import Collected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.probe.process import Target
    from stepscope.probe.source.files import ProcessFiles


def read_only(target: Target) -> Collected:
    """Return versions and folders as they lie in the site-packages around an interpreter, and on PYTHONPATH."""
    files = target.files
    prefix = str(PurePosixPath(target.python).parent.parent)
    distributions: dict[str, str] = {}
    folders: dict[str, str] = {}
    version = ""
    for place in _places(target, prefix, files):
        library = PurePosixPath(place).parent.name
        version = version or (library.removeprefix("python") if library.startswith("python") else "")
        for name in files.names(place):
            if name.endswith((".dist-info", ".egg-info")):
                found = PathDistribution(files.here(f"{place}/{name}"))
                _add(found, distributions)
        for module in MODULES:
            if module not in folders and files.names(f"{place}/{module}"):
                folders[module] = f"{place}/{module}"
    return Collected(
        version=version or "unknown",
        executable=target.python,
        prefix=prefix,
        distributions=distributions,
        folders=folders,
    )


def _places(target: Target, prefix: str, files: ProcessFiles) -> Iterator[str]:
    if target.first_path is not None:
        yield target.first_path
    yield from filter(None, target.environment.get("PYTHONPATH", "").split(":"))
    for library in ("lib", "lib64"):
        for name in files.names(f"{prefix}/{library}"):
            if name.startswith("python"):
                yield f"{prefix}/{library}/{name}/site-packages"
                yield f"{prefix}/{library}/{name}/dist-packages"
    yield "/usr/local/lib/python3/dist-packages"
    yield "/usr/lib/python3/dist-packages"


def _add(found: PathDistribution, distributions: dict[str, str]) -> None:
    try:
        name, version = found.metadata["Name"], found.version
    except (OSError, ValueError, KeyError, TypeError):
        return
    key = str(name or "").lower().replace("_", "-")
    if key.startswith(DISTRIBUTIONS):
        distributions.setdefault(key, str(version))
