"""What a GPU was measured to reach, as `stepscope calibrate` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from stepscope import units
from stepscope.report import Format
from stepscope.report.console import console_on
from stepscope.report.json import write
from stepscope.report.markdown import escaped, table
from stepscope.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from stepscope.document import Calibration

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
    if report_format is Format.JSON:
        write(calibration, stream)
    elif report_format is Format.MARKDOWN:
        stream.writelines(f"{line}\n" for line in _markdown(calibration))
    else:
        _draw(calibration, stream)


def _draw(calibration: Calibration, stream: TextIO) -> None:
    with console_on(stream) as console:
        console.print(printable(_title(calibration)), style="bold")
        console.print(printable(_machine(calibration)))
        drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name in _HEADER:
            drawn.add_column(name, justify="right" if name in _HEADER[1:4] else "left")
        for row in _rows(calibration):
            drawn.add_row(*row)
        console.print(drawn)
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
