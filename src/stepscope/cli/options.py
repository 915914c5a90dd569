"""Options that several commands take, each declared once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from cyclopts import Parameter, Token

from stepscope.errors import UsageError
from stepscope.report import Format, TableFormat

_MOST_DIGITS = 12
"""No deployment has a million millions of anything; far more than that overflow what is computed from them."""


def count(_type: object, tokens: Sequence[Token]) -> int:
    """Return a number of things: whole, and at least 1."""
    option, text = tokens[0].keyword or "", tokens[0].value.strip()
    if not re.fullmatch(rf"0*[1-9][0-9]{{0,{_MOST_DIGITS - 1}}}", text):
        raise UsageError(f"{option} {text[:40]}: must be a whole number, at least 1 and below 10^{_MOST_DIGITS}")
    return int(text)


ReportFormat = Annotated[Format, Parameter("--format", help="What to print.")]
Table = Annotated[TableFormat, Parameter("--format", help="What to print.")]
TracePath = Annotated[
    str, Parameter(help="A trace file (JSON, plain, gzip or zstd), a folder that holds one, a URL, or - for stdin.")
]
Output = Annotated[Path | None, Parameter("--output", help="Write the result to this file instead of stdout.")]


class _Served(TypedDict, total=False):
    """`stepscope.model.Served`, as options."""

    model: Annotated[
        str | None,
        Parameter(
            "--model", help="Model preset, or a Hugging Face config.json or its folder: tells which tensor a shape is."
        ),
    ]
    server_info: Annotated[
        str | None,
        Parameter(
            "--server-info",
            help="What the server tells of itself (SGLang: /get_server_info, vLLM: /server_info or its log line), for"
            " what the options do not tell.",
        ),
    ]
    tp: Annotated[int | None, Parameter("--tp", converter=count, help="Ranks of the tensor-parallel group.")]
    ep: Annotated[
        int | None,
        Parameter("--ep", converter=count, help="Ranks, of those, that the experts are shared out over."),
    ]
    dp: Annotated[
        int | None,
        Parameter("--dp", converter=count, help="Groups of those ranks that attend to requests of their own."),
    ]


Sources = Annotated[
    list[Path],
    Parameter(
        "--source", negative=(), consume_multiple=False, help="Folder with the recorded source files (repeatable)."
    ),
]


class _Facts(_Served, total=False):
    """`stepscope.pipeline.facts.Options`, as options."""

    gpu: Annotated[str | None, Parameter("--gpu", help="GPU; by default the one that the trace recorded.")]
    context: Annotated[int | None, Parameter("--context", converter=count, help="Live tokens of a request.")]
    sources: Sources


Served = Annotated[_Served | None, Parameter(name="*")]
"""How a model is served, an option each; None: nothing is told."""
Facts = Annotated[_Facts | None, Parameter(name="*")]
"""What is told of a trace's run, an option each; None: nothing is told."""
CaptureTrace = Annotated[
    str | None,
    Parameter(
        "--capture-trace",
        help="Trace of the graph's capture, or of the same steps run eagerly: tells what the graph's kernels compute.",
    ),
]
FailOn = Annotated[
    Literal["critical", "major", "minor"] | None,
    Parameter("--fail-on", help="Exit with 1 if a finding is at least this severe."),
]
NoCache = Annotated[
    bool, Parameter("--no-cache", negative=(), help="Read the trace anew, and keep nothing for the next time.")
]
