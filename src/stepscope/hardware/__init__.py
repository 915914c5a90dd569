"""What a GPU can do: one data file each in `gpus/`, unit in the key, source beside the value."""

from __future__ import annotations

from importlib import resources

import msgspec

from stepscope.errors import UsageError


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value and where it comes from; its unit stands in the field's name."""

    value: float
    source: str


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU's ceilings: datasheet figures, and measured ones where there are any. None means not known."""

    name: str
    recorded_names: list[str]
    """What traces call it."""
    memory_gb_per_s: Figure | None = None
    memory_measured_gb_per_s: Figure | None = None
    """Rate of a large copy, bytes read plus bytes written."""
    bf16_tflops: Figure | None = None
    bf16_measured_tflops: Figure | None = None
    fp8_tflops: Figure | None = None
    fp4_tflops: Figure | None = None
    link_gb_per_s: Figure | None = None
    """Rate to its peers, all of them together, in one direction."""
    collective_latency_us: Figure | None = None
    """An all-reduce of a few bytes."""


def gpu_names() -> list[str]:
    """Return the names that `--gpu` takes."""
    return sorted(_files())


def find_gpu(name: str | None, recorded_name: str | None) -> Gpu | None:
    """Return a GPU by its name, or else by the name that the trace recorded.

    A recorded name without a data file gives a GPU without figures; no name at all gives None.

    Raises:
        UsageError: there is no data file for `name`.
    """
    if name is not None:
        if name.lower() not in _files():
            raise UsageError(f"--gpu {name}: unknown GPU; known are {', '.join(gpu_names())}")
        return _read(name.lower())
    if recorded_name is None:
        return None
    known = (gpu for key in gpu_names() if recorded_name in (gpu := _read(key)).recorded_names)
    return next(known, Gpu(recorded_name, [recorded_name]))


def _files() -> dict[str, resources.abc.Traversable]:
    folder = resources.files("stepscope.hardware") / "gpus"
    return {entry.name.removesuffix(".toml"): entry for entry in folder.iterdir() if entry.name.endswith(".toml")}


def _read(name: str) -> Gpu:
    return msgspec.toml.decode(_files()[name].read_bytes(), type=Gpu)
