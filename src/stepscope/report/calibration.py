"""What a GPU was measured to reach, as `stepscope calibrate` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import units
from stepscope.report.console import plain_table
from stepscope.report.formats import draw_as
from stepscope.report.markdown import escaped, table
from stepscope.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from rich.console import Console

    from stepscope.document import Calibration
    from stepscope.report import Format

_NAMES = {
    "memory_measured_gb_per_s": "copy",
    "memory_read_measured_gb_per_s": "read",
    "bf16_measured_tflops": "matmul BF16",
    "fp8_measured_tflops": "matmul FP8",
    "launch_latency_us": "launch, host",
    "graph_kernel_us": "kernel in a graph",
}
_HEADER = ("ceiling", "measured", "quartiles apart", "of the datasheet's", "how")


def draw(calibration: Calibration, report_format: Format, stream: TextIO) -> None:
    """Write the ceilings to a stream."""
    draw_as(report_format, calibration, stream, terminal=_terminal, markdown=_markdown)


def _terminal(calibration: Calibration, console: Console) -> None:
    console.print(printable(_title(calibration)), style="bold")
    console.print(printable(_machine(calibration)))
    console.print(plain_table(_HEADER, _rows(calibration), texts=(0, 4)))
    for line in (*_gaps(calibration), _kept(calibration)):
        console.print(printable(line))


def _markdown(calibration: Calibration) -> Iterator[str]:
    yield f"# {escaped(_title(calibration))}"
    yield ""
    yield escaped(_machine(calibration))
    yield ""
    yield from table(_HEADER, _rows(calibration))
    for line in (*_gaps(calibration), _kept(calibration)):
        yield ""
        yield escaped(line)


def _title(calibration: Calibration) -> str:
    return f"{calibration.device} as measured on {calibration.date}"


def _machine(calibration: Calibration) -> str:
    parts = [f"torch {calibration.torch}", calibration.runtime]
    parts += [f"driver {calibration.driver}"] if calibration.driver else []
    if calibration.clocks is not None:
        clocks = calibration.clocks
        told = [
            (clocks.sm_mhz, "SM {:.0f} MHz"),
            (clocks.memory_mhz, "memory {:.0f} MHz"),
            (clocks.power_w, "{:.0f} W"),
            (clocks.temperature_c, "{:.0f} °C"),
        ]
        known = ", ".join(text.format(value) for value, text in told if value is not None)
        parts += [f"after a second of matmuls: {known}"] if known else []
    return "; ".join(parts)


def _rows(calibration: Calibration) -> Iterator[tuple[str, ...]]:
    for one in calibration.measured:
        share = units.share(one.value / one.datasheet) if one.datasheet else ""
        yield _NAMES[one.name], _text(one.name, one.value), units.share(one.spread / one.value), share, one.how


def _text(name: str, value: float) -> str:
    if name.endswith("_us"):
        return units.time(value)
    return units.arithmetic(value) if name.endswith("_tflops") else units.rate(value)


def _gaps(calibration: Calibration) -> Iterator[str]:
    for one in calibration.not_measured:
        yield f"not measured: {_NAMES[one.name]} ({one.reason})"


def _kept(calibration: Calibration) -> str:
    return f"kept in {calibration.kept_in}, and used from now on as --gpu {calibration.gpu}"
