"""`stepscope floor`: the least time of a decode step, part by part."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from cyclopts import Parameter

from stepscope.cli import options
from stepscope.cli.output import check_writable, result_stream
from stepscope.errors import ExitCode, UsageError
from stepscope.report import Format

_DURATION = re.compile(r"(?P<number>[0-9]{1,12}(?:\.[0-9]+)?|\.[0-9]+)\s*(?P<unit>us|[\u00b5\u03bc]s|ms|s)?")
_US = {"us": 1.0, "\u00b5s": 1.0, "\u03bcs": 1.0, "ms": 1e3, "s": 1e6}
"""µ is typed as the micro sign or as the Greek letter."""


def floor(  # noqa: PLR0913 -- the options of the command
    *,
    gpu: Annotated[str, Parameter("--gpu", help="GPU that the model runs on.")],
    served: options.Served = None,
    weights: Annotated[
        str | None,
        Parameter(
            "--weights",
            help="Format of the routed experts, of all linear layers in a dense model: bf16, fp8, nvfp4, mxfp4,"
            " int4-awq, int4-gptq, gguf:Q4_K …; by default as the checkpoint or the server tells, else bf16.",
        ),
    ] = None,
    kv_dtype: Annotated[
        Literal["bf16", "fp8"] | None,
        Parameter("--kv-dtype", help="Type of the KV cache; by default as the server or the checkpoint tells."),
    ] = None,
    batch: Annotated[
        int | None,
        Parameter("--batch", converter=options.count, help="Requests in the step; by default as in the trace, else 1."),
    ] = None,
    context: Annotated[int, Parameter("--context", converter=options.count, help="Live tokens of a request.")] = 1024,
    measured: Annotated[
        str | None, Parameter("--measured", help="What the step was measured to take: 86ms, 0.086s; a number is ms.")
    ] = None,
    trace: Annotated[
        list[str] | None,
        Parameter(
            "--trace",
            negative=(),
            consume_multiple=False,
            help="Trace of such steps, in place of --measured: where the time beyond the floor goes. Traces of several "
            "batch sizes (repeatable) tell fixed costs from those that grow with the batch.",
        ),
    ] = None,
    report_format: options.ReportFormat = Format.TERMINAL,
    output: options.Output = None,
    no_cache: options.NoCache = False,
) -> ExitCode:
    """Give the least time that a decode step can take on a GPU, by component, and what a measured one took beyond."""
    from stepscope import pipeline  # noqa: PLC0415 -- loads polars, which `--help` can do without
    from stepscope.cli.progress import reading  # noqa: PLC0415 -- the same
    from stepscope.report import floor as report  # noqa: PLC0415 -- the same

    check_writable(output)
    measured_us = None if measured is None else _microseconds(measured)
    with reading(no_cache=no_cache) as how:
        found = pipeline.floor(
            gpu=gpu,
            weights=weights,
            kv_dtype=kv_dtype,
            batch=batch,
            context=context,
            measured_us=measured_us,
            traces=trace or (),
            **(served or {}),
            **how,
        )
    with result_stream(output) as stream:
        report.draw(found, report_format, stream)
    return ExitCode.DONE


def _microseconds(text: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    us = 0.0 if found is None else float(found["number"]) * _US[found["unit"] or "ms"]
    if not us:
        raise UsageError(f"--measured {text[:40]}: is no duration such as 86ms")
    return us
