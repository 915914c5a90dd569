"""A signal that ends a command leaves nothing half-written, and the command dies of it as any other would."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_WAITS_WITH_ITS_OUTPUT_OPEN = """
import signal, sys, time
from stepscope import cli

def draw(*_):
    sys.stdout.write("open\\n")
    sys.stdout.flush()
    time.sleep(60)

sys.modules["stepscope.cli.rules"].write = draw
sys.argv = ["stepscope", "rules", "--format", "json", "--output", sys.argv[1]]
sys.exit(cli.main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_nothing_is_left_beside_the_output(number: signal.Signals, tmp_path: Path) -> None:
    output = tmp_path / "rules.json"
    command = [sys.executable, "-c", _WAITS_WITH_ITS_OUTPUT_OPEN, str(output)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:  # noqa: S603 -- our own command
        assert started.stdout is not None
        assert started.stdout.readline() == "open\n"
        assert [path.name[:11] for path in tmp_path.iterdir()] == [".stepscope-"]
        started.send_signal(number)
        _, err = started.communicate(timeout=30)
    assert list(tmp_path.iterdir()) == []
    if number == signal.SIGINT:
        assert (started.returncode, err) == (130, "stepscope: interrupted\n")
    else:
        assert (started.returncode, err) == (-number, "")


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    """As `nohup` has it."""
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + _WAITS_WITH_ITS_OUTPUT_OPEN
    code = code.replace("time.sleep(60)", "time.sleep(1)")
    command = [sys.executable, "-c", code, str(tmp_path / "rules.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:  # noqa: S603 -- our own command
        assert started.stdout is not None
        assert started.stdout.readline() == "open\n"
        started.send_signal(signal.SIGHUP)
        assert started.wait(30) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["rules.json"]
