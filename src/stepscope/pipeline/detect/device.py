"""What a trace tells of the GPU itself, beside its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.trace import Trace

_MOST = 1 << 16
"""No GPU has so many multiprocessors."""


def multiprocessors(trace: Trace) -> int | None:
    """Return how many multiprocessors (compute units) each GPU in use has; None: not recorded, or not all alike."""
    counts = {device.get("numSms") for device in _in_use(trace)}
    count = counts.pop() if len(counts) == 1 else None
    return count if type(count) is int and 0 < count < _MOST else None


def generation(trace: Trace) -> int | None:
    """Return the compute capability's first number of each GPU in use: 9 of Hopper; None: not told, or no NVIDIA's."""
    if "NVIDIA" not in (trace.device_name or ""):
        return None
    numbers = {device.get("computeMajor") for device in _in_use(trace)}
    number = numbers.pop() if len(numbers) == 1 else None
    return number if type(number) is int and 0 < number < _MOST else None


def _in_use(trace: Trace) -> Iterator[dict[str, object]]:
    properties = trace.header.get("deviceProperties")
    devices = [device for device in properties if isinstance(device, dict)] if isinstance(properties, list) else []
    used = trace.kernels["device"].drop_nulls().unique().to_list()
    yield from [device for device in devices if device.get("id") in used] or devices
