"""Measures the ceilings of the GPU at hand, and keeps them in the user's settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import torch

from stepscope import hardware
from stepscope.document import Calibration, Measurement, NotMeasured
from stepscope.errors import DeviceError
from stepscope.hardware import Figure, Gpu
from stepscope.lab import ceilings
from stepscope.lab.ceilings import Bench
from stepscope.lab.machine import driver_and_clocks
from stepscope.lab.timing import time_bursts
from stepscope.paged_mla.bench.timing import time_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stepscope.lab.ceilings import Reached

_DATASHEET = {
    "memory_measured_gb_per_s": "memory_gb_per_s",
    "memory_read_measured_gb_per_s": "memory_gb_per_s",
    "bf16_measured_tflops": "bf16_tflops",
    "fp8_measured_tflops": "fp8_tflops",
}
"""The vendor's figure beside each that is measured."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured at once."""

    tensor_bytes: int = 4 << 30
    """Many times the largest cache."""
    matrix: int = 8192
    """Rows and columns; fills every multiprocessor of today's GPUs many times."""
    launches: int = 500
    """In a row; CUDA queues 1,024."""
    graph_kernels: int = 1000

    def fitting(self, free_bytes: int) -> Sizes:
        """Return sizes that fit into free memory: a copy needs its tensor twice."""
        return replace(self, tensor_bytes=min(self.tensor_bytes, free_bytes // 4))


def calibrate() -> Calibration:
    """Measure the ceilings of torch's current GPU, and keep them in the user's settings.

    Raises:
        UsageError: the user's settings are damaged or cannot be written; nothing was measured.
        DeviceError: there is no GPU, or it does not do what it should.
    """
    if not torch.cuda.is_available():
        raise DeviceError("calibrate: torch finds no GPU here; there is nothing to measure")
    try:
        device = torch.device("cuda", torch.cuda.current_device())
        name = hardware.name_of(torch.cuda.get_device_properties(device).name)
        hardware.writable_user_folder()
        calibration = _measured_here(device, name)
    except RuntimeError as error:  # torch's, for whatever goes wrong on a device
        raise DeviceError(f"calibrate: the GPU failed ({str(error).partition(chr(10))[0]})") from error
    return msgspec.structs.replace(calibration, kept_in=str(keep(calibration)))


def measure(sizes: Sizes, bench: Bench) -> Iterator[Measurement | NotMeasured]:
    """Yield each ceiling of a device, measured, or why it is not.

    Raises:
        DeviceError: the device computes something wrong.
    """
    tensor = f"a tensor of {sizes.tensor_bytes / (1 << 30):.3g} GiB"
    matrices = f"{sizes.matrix} × {sizes.matrix} × {sizes.matrix}, random data"
    steps: list[tuple[str, Callable[[int, Bench], Reached], int, str]] = [
        (
            "memory_measured_gb_per_s",
            ceilings.copy_rate,
            sizes.tensor_bytes,
            f"copy of {tensor}, bytes read plus bytes written",
        ),
        ("memory_read_measured_gb_per_s", ceilings.read_rate, sizes.tensor_bytes, f"sum of {tensor}"),
        ("bf16_measured_tflops", ceilings.bf16_rate, sizes.matrix, f"BF16 product {matrices}"),
        (
            "fp8_measured_tflops",
            ceilings.fp8_rate,
            sizes.matrix,
            f"FP8 (e4m3) product {matrices}, one scale a matrix, BF16 result",
        ),
        (
            "launch_latency_us",
            ceilings.launch_latency,
            sizes.launches,
            f"the host's time for a launch of an empty kernel, {sizes.launches:,} in a row",
        ),
        (
            "graph_kernel_us",
            ceilings.graph_kernel_time,
            sizes.graph_kernels,
            f"the device's time for an empty kernel, in a graph of {sizes.graph_kernels:,}",
        ),
    ]
    for name, step, size, how in steps:
        try:
            reached = step(size, bench)
        except NotImplementedError as error:
            yield NotMeasured(name=name, reason=str(error))
        else:
            yield Measurement(name=name, value=reached.value, spread=reached.spread, datasheet=None, how=how)


def keep(calibration: Calibration) -> Path:
    """Keep what was measured in the user's settings, and return the file.

    Raises:
        UsageError: it cannot be written there.
    """
    where = ", ".join(
        part for part in (f"torch {calibration.torch}", calibration.driver and f"driver {calibration.driver}") if part
    )
    figures = {
        one.name: Figure(
            float(f"{one.value:.4g}"),
            f"stepscope calibrate on {calibration.date}: {one.how}; median, quartiles {one.spread:.2g} apart; {where}",
        )
        for one in calibration.measured
    }
    return hardware.keep(calibration.gpu, Gpu(calibration.device, [calibration.device], **figures))


def _measured_here(device: torch.device, name: str) -> Calibration:
    properties = torch.cuda.get_device_properties(device)
    launch = partial(torch.cuda._sleep, 0)  # noqa: SLF001 -- the emptiest kernel that torch has
    bench = Bench(device, time_bursts, time_calls, launch, torch.cuda.synchronize)
    found = list(measure(Sizes().fitting(torch.cuda.mem_get_info(device)[0]), bench))
    driver, clocks = driver_and_clocks(_identifier(properties), _load(device))
    known = hardware.find_gpu(None, properties.name)
    return Calibration(
        gpu=name,
        device=properties.name,
        date=datetime.now(UTC).date().isoformat(),
        torch=str(torch.__version__),
        runtime=f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}",
        driver=driver,
        clocks=clocks,
        measured=[_beside_datasheet(one, known) for one in found if isinstance(one, Measurement)],
        not_measured=[one for one in found if isinstance(one, NotMeasured)],
        kept_in="",
    )


def _beside_datasheet(one: Measurement, known: Gpu | None) -> Measurement:
    figure = getattr(known, _DATASHEET[one.name]) if one.name in _DATASHEET else None
    return msgspec.structs.replace(one, datasheet=figure.value if figure else None)


def _identifier(properties: object) -> str | None:
    """Return what nvidia-smi knows the GPU by, since its numbers are not torch's."""
    identifier = getattr(properties, "uuid", None)
    return f"GPU-{identifier}" if identifier else None


def _load(device: torch.device) -> Callable[[], object]:
    """Return some milliseconds of matrix products."""
    left, right = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))

    def multiply() -> None:
        for _ in range(10):
            torch.matmul(left, right)
        torch.cuda.synchronize(device)

    return multiply
