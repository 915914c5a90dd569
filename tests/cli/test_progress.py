"""Progress on stderr: nothing where nobody looks, a bar on a terminal, and never a byte on stdout."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from tests.kineto import Kineto
from tests.samples_of_trouble import HOSTILE

pty = pytest.importorskip("pty", reason="pseudo-terminals are Unix's")

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = 40_000


@pytest.fixture(name="trace", scope="module")
def trace_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of several MB, which is several blocks."""
    trace = Kineto()
    for number in range(EVENTS // 2):
        trace.kernel(f"kernel_{number % 7}", 10 + number * 10, 5, correlation=trace.launch(1 + number * 10, 1))
    return trace.save(tmp_path_factory.mktemp("trace") / "a trace.json")


def run(*arguments: str | Path, terminal: bool) -> tuple[int, bytes, bytes]:
    """Return the exit code, stdout, and stderr: of a pipe or of a terminal of 200 columns."""
    command = [sys.executable, "-m", "stepscope", *map(str, arguments)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "200"}
    environment.pop("NO_COLOR", None)
    if not terminal:
        done = subprocess.run(command, capture_output=True, check=False, timeout=60, env=environment)  # noqa: S603
        return done.returncode, done.stdout, done.stderr
    ours, theirs = pty.openpty()
    seen = bytearray()

    def watch() -> None:
        try:
            while data := os.read(ours, 1 << 16):
                seen.extend(data)
        except OSError:  # Linux says so when the other side is closed
            pass

    process = subprocess.Popen(  # noqa: S603 -- our own command
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=environment
    )
    os.close(theirs)
    watcher = threading.Thread(target=watch)
    watcher.start()
    stdout, _ = process.communicate(timeout=60)
    watcher.join(10)
    os.close(ours)
    return process.returncode, stdout, bytes(seen)


def test_nothing_is_written_where_stderr_is_no_terminal(trace: Path) -> None:
    code, stdout, stderr = run("diagnose", trace, "--no-cache", terminal=False)
    assert (code, stderr) == (0, b"")
    assert b"\x1b" not in stdout


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_bar_with_bytes_and_events_appears_on_a_terminal_and_goes(
    packed: bool,  # noqa: FBT001
    trace: Path,
    tmp_path: Path,
) -> None:
    path = trace
    if packed:
        path = tmp_path / "a trace.json"
        path.write_bytes(gzip.compress(trace.read_bytes(), 1))
    _, expected, _ = run("diagnose", path, "--no-cache", terminal=False)
    code, stdout, stderr = run("diagnose", path, "--no-cache", terminal=True)
    assert code == 0
    assert stdout == expected  # the report, and only that
    shown = stderr.decode()
    assert "a trace.json" in shown
    size = path.stat().st_size
    whole = re.escape(f"{size / 1e3:.1f}" if size < 1e6 else f"{size / 1e6:.1f}")
    assert re.search(rf"{whole}/{whole} {'kB' if size < 1e6 else 'MB'}", shown)
    counts = [int(found.replace(",", "")) for found in re.findall(r"([\d,]+) events", shown)]
    assert counts
    assert counts == sorted(counts)
    assert 0 < counts[-1] <= EVENTS
    assert shown.rstrip().endswith("\x1b[2K")  # the line is wiped: the bar does not stay


def test_a_file_name_cannot_command_the_terminal(trace: Path, tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "-").replace("\0", "")[:80]
    path = tmp_path / f"{name}.json"
    path.write_bytes(trace.read_bytes())
    code, _, stderr = run("diagnose", path, "--no-cache", terminal=True)
    assert code == 0
    assert b"\x1b]0;" not in stderr
    assert b"\x07" not in stderr
    assert "\u202e".encode() not in stderr


def test_what_a_folder_passes_over_is_said_on_stderr(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(trace.read_bytes())
    (tmp_path / "config.json").write_text('{"hidden_size": 1}')
    code, stdout, stderr = run("diagnose", tmp_path, "--no-cache", terminal=True)
    assert code == 0
    assert b"passed over" not in stdout
    assert stderr.count(b"stepscope: passed over") == 1


def test_an_error_on_a_terminal_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("{}")
    code, stdout, stderr = run("diagnose", path, terminal=True)
    assert (code, stdout) == (3, b"")
    assert stderr.count(b"stepscope: ") == 1
    assert b"Traceback" not in stderr
