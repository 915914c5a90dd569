"""`stepscope demo`: the samples that ship in the package, diagnosed."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from stepscope.cli import options
from stepscope.cli.output import check_writable, result_stream
from stepscope.errors import ExitCode
from stepscope.report import Format, draw

SAMPLES = ("graph-cast.json.gz", "eager-cast-stacks.json.gz")
"""The same step twice: replayed as a CUDA graph, which shows the gain, and eager, which shows the line of code."""
MODEL, TP, CONTEXT = "glm-5", 8, 1024
"""What the samples were recorded with."""

_STORY = """\
Two real traces of one decode step shaped like GLM-5 on an H200 (one rank of 8, FP8 KV pool, batch 1).
First as a CUDA graph: its kernels have no names of yours, but removing the cause gains most of the step.
Then eager, with stacks: the same cause with its line of code, where removing it alone gains nothing,
because the host is the limit.

"""


def demo(*, report_format: options.ReportFormat = Format.TERMINAL, output: options.Output = None) -> ExitCode:
    """Diagnose the bundled samples: no network, no GPU, no arguments."""
    from stepscope import pipeline  # noqa: PLC0415 -- loads polars, which `--help` can do without

    check_writable(output)
    with resources.as_file(resources.files("stepscope") / "samples") as folder:
        diagnosis = pipeline.diagnose(
            [Path(folder) / name for name in SAMPLES], model=MODEL, tp=TP, context=CONTEXT, sources=[folder]
        )
    with result_stream(output) as stream:
        if report_format is Format.TERMINAL:
            stream.write(_STORY)
        draw(diagnosis, report_format, stream)
    return ExitCode.DONE
