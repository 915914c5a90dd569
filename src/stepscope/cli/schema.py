"""`stepscope schema`: the JSON Schema of the document."""

from __future__ import annotations

import msgspec

from stepscope.cli import options
from stepscope.cli.output import check_writable, result_stream
from stepscope.document import json_schema
from stepscope.errors import ExitCode


def schema(*, output: options.Output = None) -> ExitCode:
    """Print the JSON Schema of what `--format json` writes."""
    check_writable(output)
    with result_stream(output) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n")
    return ExitCode.DONE
