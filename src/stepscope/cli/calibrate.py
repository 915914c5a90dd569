"""`stepscope calibrate`: what the GPU at hand really reaches, kept and used from then on."""

from __future__ import annotations

from importlib.util import find_spec

from stepscope.cli import options
from stepscope.cli.output import check_writable, result_stream
from stepscope.errors import ExitCode, PartNotInstalledError
from stepscope.report import Format


def calibrate(*, report_format: options.ReportFormat = Format.TERMINAL, output: options.Output = None) -> ExitCode:
    """Measure this GPU's copy and matmul rates and its launch latency, and use them from now on.

    It takes some seconds, and wants the GPU for itself. CUDA_VISIBLE_DEVICES chooses among several.

    Raises:
        PartNotInstalledError: torch or Triton is not installed.
    """
    missing = [name for name in ("torch", "triton") if find_spec(name) is None]
    if missing:
        raise PartNotInstalledError(f"calibrate needs {' and '.join(missing)}: pip install 'stepscope[gpu]'")
    check_writable(output)
    from stepscope.lab.calibrate import calibrate as measure_and_keep  # noqa: PLC0415 -- imports torch
    from stepscope.report import calibration as report  # noqa: PLC0415 -- only when there is something to draw

    found = measure_and_keep()
    with result_stream(output) as stream:
        report.draw(found, report_format, stream)
    return ExitCode.DONE
