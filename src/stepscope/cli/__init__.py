"""The command line: parses and prints, decides nothing. One command a file."""

from __future__ import annotations

import io
import os
import sys

from cyclopts import App, CycloptsError

from stepscope.cli.demo import demo
from stepscope.cli.diagnose import diagnose
from stepscope.cli.explain import explain
from stepscope.cli.rules import rules
from stepscope.cli.schema import schema
from stepscope.errors import ExitCode, StepscopeError
from stepscope.version import __version__

app = App(
    name="stepscope",
    help="Find what slows an LLM's inference step, and what fixing it would really gain.",
    version=__version__,
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,  # `main` answers it
)
for command in (demo, diagnose, explain, rules, schema):
    app.command(command)


def main() -> int:
    """Run a command and return its exit code; bad input gets one sentence on stderr, never a traceback."""
    _write_any_character()
    try:
        result = app(sys.argv[1:], exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _refuse(" ".join(str(error).split()), ExitCode.WRONG_USAGE)
    except StepscopeError as error:
        return _refuse(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _refuse("interrupted", ExitCode.INTERRUPTED)
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    return result if isinstance(result, int) else ExitCode.DONE


def _write_any_character() -> None:
    """Let names hold what an old terminal's encoding cannot: escaped on a terminal, as UTF-8 anywhere else."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="backslashreplace")


def _refuse(sentence: str, code: ExitCode) -> int:
    from stepscope.report.text import printable  # noqa: PLC0415 -- only when there is something to refuse

    sys.stderr.write(f"stepscope: {printable(sentence)}\n")
    return code
