"""The streams around a command: terminals, pipes, devices, odd encodings and closed ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.kineto import Kineto
from tests.processes import is_one_sentence, process

if TYPE_CHECKING:
    from collections.abc import Callable

Result = tuple[int, str, str]
"""Exit code, stdout, stderr."""


def test_80_columns_and_no_colour_where_nobody_looks(trace: Path) -> None:
    done = process("diagnose", trace, COLUMNS="80", TERM="xterm-256color")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="pipes break with an error only on POSIX systems")
def test_a_reader_that_has_had_enough_is_no_error(tmp_path: Path) -> None:
    trace = Kineto()
    for number in range(3000):
        trace.annotation("step[DECODE bs=1]", 1 + number * 100, 50)
        trace.call(f"kernel_{number}" * 20, at=5 + number * 100, duration=5)
    path = trace.save(tmp_path / "t.json")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(  # noqa: S603 -- our own command
            [sys.executable, "-m", "stepscope", "diagnose", str(path), "--format", "json"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
@pytest.mark.parametrize("report_format", ["terminal", "json"])
def test_a_pipe_gets_utf_8_whatever_the_encoding_around_it(encoding: str, report_format: str, trace: Path) -> None:
    done = process("diagnose", trace, "--format", report_format, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\N{MULTIPLICATION SIGN}" in done.stdout


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are terminals to imitate on POSIX systems only")
def test_an_old_terminal_gets_escapes_for_what_it_cannot_show(trace: Path) -> None:
    """A terminal of 80 columns that knows ASCII alone: no traceback, and colour."""
    ours, theirs = os.openpty()
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "TERM": "xterm", "COLUMNS": "80"}
    command = [sys.executable, "-m", "stepscope", "diagnose", str(trace)]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=environment) as started:  # noqa: S603
        os.close(theirs)
        shown = b""
        while block := _read(ours):
            shown += block
        assert started.wait(60) == 0
        assert started.stderr is not None
        assert started.stderr.read() == b""
    os.close(ours)
    assert b"kv-pool-cast" in shown
    assert b"\\xd7" in shown
    assert b"\x1b[" in shown
    assert shown.isascii()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # how Linux says that the other end has hung up
        return b""


def test_a_path_that_is_no_utf8_can_be_written_as_json(trace: Path, tmp_path: Path, run: Callable[..., Result]) -> None:
    path = tmp_path / os.fsdecode(b"\xff.json.gz")
    path.write_bytes(trace.read_bytes())
    code, out, err = run("diagnose", path, "--format", "json")
    assert (code, err) == (0, "")
    assert json.loads(out)["traces"][0]["path"].endswith("\\xff.json.gz")


@pytest.mark.parametrize("device", ["pipe", "/dev/zero", "/dev/null"])
def test_a_pipe_or_device_is_refused_without_waiting(device: str, tmp_path: Path, run: Callable[..., Result]) -> None:
    os.mkfifo(tmp_path / "pipe")
    code, out, err = run("diagnose", tmp_path / device)
    assert (code, out) == (3, "")
    assert is_one_sentence(err)


def test_output_to_a_pipe_leaves_it_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert process("rules", "--output", pipe).returncode == 0
        assert b"kv-pool-cast" in os.read(reader, 1 << 16)
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_output_to_a_link_writes_what_it_points_to(tmp_path: Path, run: Callable[..., Result]) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert run("rules", "--output", tmp_path / "link") == (0, "", "")
    assert (tmp_path / "link").is_symlink()
    assert "kv-pool-cast" in (tmp_path / "target").read_text()


def test_output_may_have_the_longest_name(tmp_path: Path, run: Callable[..., Result]) -> None:
    assert run("rules", "--output", tmp_path / ("x" * 255)) == (0, "", "")


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="the system has no device that is always full")
@pytest.mark.parametrize("command", ["--help", "--version", "schema", "rules", "diagnose"])
def test_a_full_stdout_is_said_in_one_sentence(command: str, trace: Path) -> None:
    arguments = [command, str(trace)] if command == "diagnose" else [command]
    with FULL.open("w") as full:
        done = subprocess.run(  # noqa: S603 -- our own command
            [sys.executable, "-m", "stepscope", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 2
    assert is_one_sentence(done.stderr)


@pytest.mark.parametrize(("closed", "code"), [("1", 2), ("2", 0), ("1 2", 2)])
def test_closed_streams(closed: str, code: int, trace: Path) -> None:
    redirections = " ".join(f"{number}>&-" for number in closed.split())
    done = subprocess.run(  # noqa: S602 -- a shell closes streams
        f"exec {sys.executable} -m stepscope diagnose {trace} {redirections}",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code
    assert done.stderr == ("" if "2" in closed else "stepscope: stdout is closed; name a file with --output\n")


@pytest.mark.parametrize("columns", ["0", "1", "39", "99999999", "-5", "wide"])
def test_any_width_of_the_terminal_gives_a_readable_report(
    columns: str, trace: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for arguments in (["diagnose", trace], ["rules"], ["explain", "kv-pool-cast"]):
        code, out, _ = run(*arguments)
        assert code == 0
        assert "kv-pool-cast" in out
        assert 20 <= max(map(len, out.splitlines())) <= 400


@pytest.mark.parametrize("columns", ["0", "1", "2", "1000000000", "wide"])
def test_help_is_drawn_at_any_width_of_the_terminal(columns: str) -> None:
    done = process("sql", "--help", COLUMNS=columns)
    assert (done.returncode, done.stderr) == (0, "")
    assert 20 <= max(map(len, done.stdout.splitlines())) <= 400


@pytest.mark.parametrize("options", [(), ("--no-cache",), ("--format", "json")])
def test_a_hyphen_is_stdin(options: tuple[str, ...], trace: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "stepscope", "diagnose", "-", *options]
    content = trace.read_bytes()
    done = subprocess.run(command, input=content, capture_output=True, check=False, timeout=60)  # noqa: S603
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"H200" in done.stdout


@pytest.mark.parametrize("option", ["--nonsense", "-x", "--no-such-thing=3"])
def test_an_option_that_does_not_exist_is_wrong_usage(option: str, trace: Path, run: Callable[..., Result]) -> None:
    for arguments in ((trace, option), (option, trace)):
        code, out, err = run("diagnose", *arguments)
        assert (code, out) == (2, "")
        assert is_one_sentence(err)
        assert "Unknown option" in err
        assert option.partition("=")[0] in err
