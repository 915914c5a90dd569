"""The command line: parses and prints, decides nothing. One command a file."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from shutil import get_terminal_size

from cyclopts import App, CycloptsError
from cyclopts.exceptions import UnusedCliTokensError

from stepscope.cli.bench import bench
from stepscope.cli.calibrate import calibrate
from stepscope.cli.capture import capture
from stepscope.cli.compare import compare
from stepscope.cli.demo import demo
from stepscope.cli.diagnose import diagnose
from stepscope.cli.explain import explain
from stepscope.cli.floor import floor
from stepscope.cli.lab import lab
from stepscope.cli.ops import ops
from stepscope.cli.probe import probe
from stepscope.cli.rules import rules
from stepscope.cli.schema import schema
from stepscope.cli.signals import cleaning_up
from stepscope.cli.sql import sql
from stepscope.cli.what_if import what_if
from stepscope.errors import ExitCode, StepscopeError
from stepscope.report import NARROWEST, WIDEST
from stepscope.version import __version__

app = App(
    name="stepscope",
    help="Find what slows an LLM's inference step, and what fixing it would really gain.",
    version=__version__,
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,  # `main` answers it
)
for command in (
    bench,
    calibrate,
    capture,
    compare,
    demo,
    diagnose,
    explain,
    floor,
    lab,
    ops,
    probe,
    rules,
    schema,
    sql,
    what_if,
):
    app.command(command)


def main() -> int:
    """Run a command and return its exit code; bad input gets one sentence on stderr, never a traceback."""
    if sys.stderr is None:  # closed by the caller
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 -- open as long as the process
    _write_any_character()
    _bound_width()
    try:
        with cleaning_up():
            result = app(sys.argv[1:], exit_on_error=False, print_error=False, result_action="return_value")
        if sys.stdout is not None:
            sys.stdout.flush()
    except CycloptsError as error:
        return _refuse(_sentence(error), ExitCode.WRONG_USAGE)
    except StepscopeError as error:
        return _refuse(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _refuse("interrupted", ExitCode.INTERRUPTED)
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        _drop_output()
        return ExitCode.DONE
    except OSError as error:  # every other file has its own sentence
        _drop_output()
        return _refuse(f"stdout cannot be written ({error.strerror})", ExitCode.WRONG_USAGE)
    return result if isinstance(result, int) else ExitCode.DONE


def _sentence(error: CycloptsError) -> str:
    if isinstance(error, UnusedCliTokensError):
        return f"too many arguments: {' '.join(error.unused_tokens or ())}"
    return " ".join(str(error).split())


def _drop_output() -> None:
    """Let what stdout still holds go nowhere, so that Python does not fail on it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_any_character() -> None:
    """Let names hold what an old terminal's encoding cannot: escaped on a terminal, as UTF-8 anywhere else."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="backslashreplace")


def _bound_width() -> None:
    """Bound the width that help is drawn in: what lays it out does not end in one column, nor fit in memory in 10^9."""
    columns = get_terminal_size().columns
    if "COLUMNS" in os.environ or columns < NARROWEST:
        os.environ["COLUMNS"] = str(min(max(columns, NARROWEST), WIDEST))


def _refuse(sentence: str, code: ExitCode) -> int:
    from stepscope.report.text import printable  # noqa: PLC0415 -- only when there is something to refuse

    sys.stderr.write(f"stepscope: {printable(sentence)}\n")
    return code
