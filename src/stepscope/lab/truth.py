"""`truth.json`: what is true about the traces beside it."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import msgspec
import torch

from stepscope.errors import NotATraceError
from stepscope.lab.measure import StepTime  # noqa: TC001 -- msgspec reads the annotations
from stepscope.version import __version__

FILE = "truth.json"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where it was recorded, and with what."""

    gpu: str | None
    """None: there was none, and the traces hold no GPU work."""
    driver: str | None
    cuda: str | None
    torch: str
    triton: str | None
    python: str
    stepscope: str


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """One way of running a case: its traces, and the same step without the profiler."""

    traces: dict[str, str]
    """File by what it holds: `steps`, `capture` (warm-up and capture of the graph), `stacks` (shapes and stacks)."""
    step: StepTime
    step_without: StepTime | None
    """The same requests with nothing switched on; None: this is that."""
    kernels_per_step: float | None
    """Memory copies and fills counted too; None: no GPU."""


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """One case."""

    slowdown: str | None
    rule: str | None
    """The one that must find it."""
    twin: str | None
    """Folder of the case without it."""
    model: str
    layers: int
    tp_slice: int
    contexts: list[int]
    new_tokens: int
    pool_slots: int
    attention: str
    seed: int
    machine: Machine
    recordings: dict[str, Recording]
    """By mode: `graph`, `eager`."""


def write(truth: Truth, folder: Path) -> None:
    """Write a case's truth beside its traces."""
    (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(truth), indent=1) + b"\n")


def read(folder: Path) -> Truth:
    """Read a case's truth.

    Raises:
        NotATraceError: the folder holds none, or it cannot be read.
    """
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Truth)
    except (OSError, msgspec.DecodeError) as error:
        raise NotATraceError(f"{folder / FILE}: is no record of the laboratory ({error})") from error


def this_machine(device: torch.device) -> Machine:
    """Return what runs here."""
    on_gpu = device.type == "cuda"
    return Machine(
        gpu=torch.cuda.get_device_name(device) if on_gpu else None,
        driver=_driver() if on_gpu else None,
        cuda=torch.version.cuda if on_gpu else None,
        torch=str(torch.__version__),
        triton=_version("triton"),
        python=platform.python_version(),
        stepscope=__version__,
    )


def _driver() -> str | None:
    try:
        words = Path("/proc/driver/nvidia/version").read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return None
    return next((word for word in words if word.count(".") == 2 and word[0].isdigit()), None)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
