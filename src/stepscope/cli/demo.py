"""`stepscope demo`: the samples that ship in the package, diagnosed."""

from __future__ import annotations

from importlib import resources

from stepscope.cli import options
from stepscope.cli.output import check_writable, result_stream
from stepscope.errors import ExitCode
from stepscope.report import Format, draw

MODEL, TP, CONTEXT = "glm-5", 8, 1024
"""What the samples were recorded with."""

SAMPLES = {
    "graph-cast.json.gz": (
        "One decode step shaped like GLM-5 on an H200 (one rank of 8, FP8 KV pool,\n"
        "batch 1), replayed as a CUDA graph. Its kernels carry no op, no shape and no\n"
        "stack; removing the cause gains most of the step."
    ),
    "eager-cast-stacks.json.gz": (
        "The same step, eager and with Python stacks: here the cause has its line of\n"
        "code. Removing it alone gains nothing, because the host is the limit."
    ),
}
"""The bundled traces, and what each shows."""


def demo(*, report_format: options.ReportFormat = Format.TERMINAL, output: options.Output = None) -> ExitCode:
    """Diagnose the bundled samples: no network, no GPU, no arguments."""
    from stepscope import pipeline  # noqa: PLC0415 -- loads polars, which `--help` can do without

    check_writable(output)
    with resources.as_file(resources.files("stepscope") / "samples") as folder, result_stream(output) as stream:
        if report_format is Format.JSON:  # one document
            paths = [folder / name for name in SAMPLES]
            draw(pipeline.diagnose(paths, model=MODEL, tp=TP, context=CONTEXT, sources=[folder]), report_format, stream)
            return ExitCode.DONE
        for name, story in SAMPLES.items():
            stream.write(f"{story}\n\n")
            diagnosis = pipeline.diagnose([folder / name], model=MODEL, tp=TP, context=CONTEXT, sources=[folder])
            draw(diagnosis, report_format, stream)
            stream.write("\n")
    return ExitCode.DONE
