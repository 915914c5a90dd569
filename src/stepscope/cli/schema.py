"""`stepscope schema`: the JSON Schema of the document."""

from __future__ import annotations

from stepscope.cli import options
from stepscope.cli.output import check_writable, result_stream
from stepscope.document import json_schema
from stepscope.errors import ExitCode
from stepscope.report.json import write


def schema(*, output: options.Output = None) -> ExitCode:
    """Print the JSON Schema of what `--format json` writes."""
    check_writable(output)
    with result_stream(output) as stream:
        write(json_schema(), stream)
    return ExitCode.DONE
