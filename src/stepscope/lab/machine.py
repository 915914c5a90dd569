"""The GPU's driver and clocks, as nvidia-smi tells them; None wherever it does not."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

from stepscope.document import Clocks

if TYPE_CHECKING:
    from collections.abc import Callable

_QUERY = "driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"
_SETTLING_S = 1.0
"""Until power and clocks are steady."""
_PATIENCE_S = 10.0
"""nvidia-smi answers in well under a second, unless the driver hangs."""


def driver_and_clocks(device: str | None, load: Callable[[], object]) -> tuple[str | None, Clocks | None]:
    """Return the driver's version, and the clocks once the GPU has been at work for a second.

    Args:
        device: the GPU's identifier, `GPU-…`; None for the first.
        load: work for the GPU; it is repeated until nvidia-smi has answered.
    """
    settled = time.monotonic() + _SETTLING_S
    while time.monotonic() < settled:
        load()
    answer = _ask(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits", "-i", device or "0"], load)
    fields = [field.strip() for field in answer.partition("\n")[0].split(",")]
    if len(fields) != len(_QUERY.split(",")):
        return None, None
    driver, sm_mhz, memory_mhz, power_w, temperature_c = fields
    return driver, Clocks(
        sm_mhz=_number(sm_mhz),
        memory_mhz=_number(memory_mhz),
        power_w=_number(power_w),
        temperature_c=_number(temperature_c),
    )


def _ask(command: list[str], load: Callable[[], object]) -> str:
    try:
        process = subprocess.Popen(  # noqa: S603 -- nothing of it comes from outside
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:  # it is not installed, as on AMD's GPUs
        return ""
    with process:
        until = time.monotonic() + _PATIENCE_S
        while process.poll() is None:
            load()
            if time.monotonic() > until:
                process.kill()
        return process.stdout.read() if process.stdout and process.returncode == 0 else ""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A]
        return None
