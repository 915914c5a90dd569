"""`stepscope capture torch`: runs a PyTorch program as it is, and brings back a trace of some of its steps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from stepscope.cli.output import result_stream
from stepscope.cli.progress import reading, warn
from stepscope.errors import ExitCode
from stepscope.report import Format, draw


def capture_torch(
    *command: Annotated[str, Parameter(help="The program and its arguments, behind --.")],
    steps: Annotated[
        int | None,
        Parameter("--steps", validator=Number(gte=1), help="Steps to record; 5, unless the program says otherwise."),
    ] = None,
    wait: Annotated[
        int | None,
        Parameter(
            "--wait",
            validator=Number(gte=0),
            help="Steps before those, which load, compile and allocate; 3, unless the program says otherwise.",
        ),
    ] = None,
    stacks: Annotated[
        bool,
        Parameter("--stacks", negative=(), help="Record Python frames: they name the code, and slow the host."),
    ] = False,
    folder: Annotated[
        Path | None,
        Parameter("--folder", help="Folder for the traces, one a process; by default stepscope-capture-DATE-TIME."),
    ] = None,
    diagnose: Annotated[bool, Parameter("--diagnose", negative=(), help="Diagnose them at once.")] = False,
) -> ExitCode:
    """Run a PyTorch program and record some of its steps: stepscope capture torch -- python script.py.

    A step is what the program marks with `stepscope.profile`; in one that marks none, it is a call of its largest
    nn.Module from outside of any other, until the next such call.
    """
    from stepscope.capture.torch_program import run_program  # noqa: PLC0415 -- only when there is something to run

    into = folder or Path(time.strftime("stepscope-capture-%Y%m%d-%H%M%S"))
    captured = run_program(command, into, steps=steps, wait=wait, stacks=stacks)
    for note in captured.notes:
        warn(note)
    paths = [str(each.file) for each in captured.recorded]
    if diagnose:
        _diagnose(paths)
    else:
        with result_stream(None) as stream:
            stream.writelines(f"{path}\n" for path in paths)
    return ExitCode.DONE


def _diagnose(paths: list[str]) -> None:
    from stepscope import pipeline  # noqa: PLC0415 -- loads polars, which `--help` can do without

    with reading(no_cache=False) as how:
        diagnosis = pipeline.diagnose(paths, **how)
    with result_stream(None) as stream:
        draw(diagnosis, Format.TERMINAL, stream)
