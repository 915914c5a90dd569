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
    return _of_all(trace, "numSms")


def generation(trace: Trace) -> int | None:
    """Return the compute capability's first number of each GPU in use: 9 of Hopper; None: not told, or no NVIDIA's."""
    if "NVIDIA" not in (trace.device_name or ""):
        return None
    return _of_all(trace, "computeMajor")


def _of_all(trace: Trace, field: str) -> int | None:
    """Return a number that is the same of each GPU in use; None: not recorded, not of all, or none."""
    told = (device.get(field) for device in _in_use(trace))
    numbers = {number if type(number) is int and 0 < number < _MOST else None for number in told}
    return numbers.pop() if len(numbers) == 1 else None


def _in_use(trace: Trace) -> Iterator[dict[str, object]]:
    properties = trace.header.get("deviceProperties")
    devices = [device for device in properties if isinstance(device, dict)] if isinstance(properties, list) else []
    used = trace.kernels["device"].drop_nulls().unique().to_list()
    yield from [device for device in devices if device.get("id") in used] or devices
