"""`stepscope capture`: from a running server to checked traces, and to a diagnosis."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from stepscope.cli import options
from stepscope.cli.capture_torch import capture_torch
from stepscope.cli.output import check_writable, result_stream
from stepscope.errors import ExitCode, PartNotInstalledError, UsageError
from stepscope.report import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import Token

    from stepscope.capture.client import Access

capture = App(name="capture", help="Take checked traces from a running server.", version_flags=[])

capture.command(capture_torch, name="torch")

_Url = Annotated[str, Parameter(help="The server, such as http://localhost:8000.")]


def _seconds(_type: object, tokens: Sequence[Token]) -> float:
    text = tokens[0].value
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise UsageError(f"--timeout {text[:40]}: is no number of seconds above 0")
    return seconds


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class _Options:
    """What both kinds of server take."""

    phase: Annotated[Literal["decode", "prefill", "mixed"], Parameter(help="State to record the server in.")] = "decode"
    batch: Annotated[int, Parameter(converter=options.count, help="Requests at once.")] = 1
    context: Annotated[
        int | None, Parameter(converter=options.count, help="Tokens of each prompt; by default 1024, or what fits.")
    ] = None
    steps: Annotated[int, Parameter(converter=options.count, help="Steps to record.")] = 5
    folder: Annotated[
        Path | None, Parameter(help="Folder for the traces; by default a new one, named for the time, in this one.")
    ] = None
    trace_dir: Annotated[
        Path | None, Parameter(help="Where the folder that the server writes traces to is mounted here.")
    ] = None
    two_pass: Annotated[
        str | None, Parameter(help="A second server of the same model, without graphs: its traces give the names.")
    ] = None
    diagnose: Annotated[bool, Parameter(negative=(), help="Diagnose the traces at the end.")] = False
    sources: options.Sources | None = None
    timeout: Annotated[float, Parameter(converter=_seconds, help="Longest time for each stage, in seconds.")] = 300.0
    header: Annotated[
        list[str] | None,
        Parameter(
            negative=(),
            consume_multiple=False,
            help="Header of every request, as 'Authorization: Bearer …' (repeatable).",
        ),
    ] = None
    tls_ca: Annotated[Path | None, Parameter(help="Certificates to trust instead of the system's (PEM).")] = None
    tls_cert: Annotated[Path | None, Parameter(help="The client's own certificate with its key (PEM).")] = None
    insecure: Annotated[bool, Parameter(negative=(), help="Trust any certificate.")] = False
    proxy: Annotated[str | None, Parameter(help="Proxy; by default as HTTP_PROXY and NO_PROXY say.")] = None
    report_format: options.ReportFormat = Format.TERMINAL
    output: options.Output = None
    no_cache: options.NoCache = False


_DEFAULT = _Options()


@capture.command
def sglang(
    url: _Url,
    /,
    *,
    stacks: Annotated[
        bool, Parameter("--stacks", negative=(), help="Record Python stacks, which slows steps.")
    ] = False,
    server_dir: Annotated[
        str | None, Parameter("--server-dir", help="--trace-dir as the server names it, where that differs.")
    ] = None,
    common: _Options = _DEFAULT,
) -> ExitCode:
    """Bring an SGLang server into a state, record some steps of it, and check the traces."""
    if server_dir is not None and common.trace_dir is None:
        raise UsageError("--server-dir says nothing without --trace-dir")
    return _capture("sglang", url, common, stacks=stacks, server_dir=server_dir)


@capture.command
def vllm(url: _Url, /, *, common: _Options = _DEFAULT) -> ExitCode:
    """Bring a vLLM server into a state, record some steps of it, and check the traces.

    What is recorded of a step, vLLM was told when it was started.
    """
    return _capture("vllm", url, common)


def _capture(
    kind: Literal["sglang", "vllm"],
    url: str,
    common: _Options,
    *,
    stacks: bool = False,
    server_dir: str | None = None,
) -> ExitCode:
    missing = [name for name in ("httpx", "psutil") if find_spec(name) is None]
    if missing:
        raise PartNotInstalledError(f"capture {kind} needs {' and '.join(missing)}: pip install 'stepscope[capture]'")
    check_writable(common.output)
    from stepscope.capture.live import Plan  # noqa: PLC0415 -- loads httpx and polars
    from stepscope.capture.live import capture as take  # noqa: PLC0415 -- the same
    from stepscope.cli.progress import reading, warn  # noqa: PLC0415 -- the same
    from stepscope.report import capture as report  # noqa: PLC0415 -- only when there is something to draw

    plan = Plan(
        kind=kind,
        access=_access(url, common),
        folder=common.folder or Path(f"stepscope-capture-{datetime.now().astimezone():%Y%m%d-%H%M%S}"),
        phase=common.phase,
        batch=common.batch,
        context=common.context,
        steps=common.steps,
        stacks=stacks,
        trace_folder=common.trace_dir,
        server_folder=server_dir,
        timeout_s=common.timeout,
    )
    says = warn if sys.stderr.isatty() else lambda _: None
    with reading(no_cache=common.no_cache) as how:
        eager = _access(common.two_pass, common) if common.two_pass is not None else None
        captured = take(plan, eager=eager, sources=common.sources or (), says=says, **how)
    with result_stream(common.output) as stream:
        report.draw(captured, common.report_format, stream, diagnosis=common.diagnose)
    problems = [*captured.problems, *(captured.eager.problems if captured.eager else ())]
    if problems:
        warn("the traces do not pass: " + "; ".join(f"{one.message}: {one.change}" for one in problems))
        return ExitCode.REMOTE_FAILURE
    return ExitCode.DONE


def _access(url: str, common: _Options) -> Access:
    from stepscope.capture.client import Access  # noqa: PLC0415 -- loads httpx

    headers = {}
    for header in common.header or ():
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise UsageError("--header: is 'Name: value'")
        headers[name.strip()] = value.strip()
    return Access(
        url=url,
        headers=headers,
        ca=common.tls_ca,
        certificate=common.tls_cert,
        insecure=common.insecure,
        proxy=common.proxy,
    )
