"""`stepscope capture` from a real vLLM server: what a new user types, and every way in which it goes wrong."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.processes import is_one_sentence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.vllm_server import Server

pytestmark = pytest.mark.servers

WITHIN_S = 120
"""From one command to a diagnosis."""
LONG = ("--steps", "30", "--context", "64")
"""Long enough to be met in its middle."""
SHORT = ("--steps", "3", "--context", "64")


class Running:
    """A capture as a process of its own."""

    def __init__(self, *arguments: str | Path, **environment: str) -> None:
        command = [sys.executable, "-W", "error", "-m", "stepscope", "capture", "vllm", *map(str, arguments)]
        self.process = subprocess.Popen(  # noqa: S603 -- our own command
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "200", **environment},
        )

    def ended(self, within_s: float = WITHIN_S) -> tuple[int, str, str]:
        """Return its exit code, stdout and stderr."""
        with self.process:
            try:
                stdout, stderr = self.process.communicate(timeout=within_s)
            finally:
                self.process.kill()
        return self.process.returncode, stdout, stderr


def capture(*arguments: str | Path, **environment: str) -> tuple[int, str, str]:
    return Running(*arguments, **environment).ended()


def taken(server: Server, folder: Path) -> dict[str, Any]:
    """Take a short capture, which must succeed: so the server was not recording before."""
    code, stdout, stderr = capture(server.url, *SHORT, "--folder", folder, "--format", "json")
    assert (code, stderr) == (0, "")
    return dict(json.loads(stdout))


def wait_for_line(server: Server, line: str, count: int) -> None:
    """Wait until the server has logged a line so many times."""
    until = time.monotonic() + 60
    while server.log.read_text(errors="replace").count(line) < count:
        assert time.monotonic() < until, f"{line!r} was not logged"
        time.sleep(0.05)


def times(server: Server, line: str) -> int:
    return server.log.read_text(errors="replace").count(line)


def recording(server: Server, *arguments: str | Path, **environment: str) -> Running:
    """Start a long capture, and return once the server records."""
    before = times(server, "Profiler started.")
    running = Running(server.url, *LONG, *arguments, **environment)
    wait_for_line(server, "Profiler started.", before + 1)
    return running


def test_one_command_ends_in_a_diagnosis(server: Server, tmp_path: Path) -> None:
    begin = time.monotonic()
    code, stdout, stderr = capture(server.url, "--diagnose", "--folder", tmp_path)
    assert time.monotonic() - begin < WITHIN_S
    assert (code, stderr) == (0, "")
    assert "vLLM 0.32.0" in stdout
    assert "the server computes on the CPU, so its traces hold nothing of a GPU" in stdout
    assert "Could not check" in stdout


def test_the_document_holds_what_was_told_served_and_recorded(server: Server, tmp_path: Path) -> None:
    document = taken(server, tmp_path)
    told = document["server"]
    assert (told["server"], told["version"], told["context_length"]) == ("vLLM", "0.32.0", 1024)
    assert told["pool_slots"] == 1024 * 1024  # 1 GB, of 2 layers × keys and values × 2 heads × 64 × 2 bytes
    assert {"tp", "ep", "attention_backend"} <= set(told["not_told"])
    traffic = document["traffic"]
    assert (traffic["phase"], traffic["batch"], traffic["context"]) == ("decode", 1, 64)
    assert traffic["unprofiled"]["tokens_per_s"] > 0
    (worker,) = (trace for trace in document["traces"] if trace["kind"] == "worker")
    (front_end,) = (trace for trace in document["traces"] if trace["kind"] == "front-end")
    assert Path(worker["path"]).parent == tmp_path
    assert Path(front_end["path"]).parent == tmp_path / "front-end"
    assert (worker["rank"], worker["whole"], front_end["whole"]) == (0, True, True)
    assert document["problems"] == []


def test_the_steps_that_were_asked_for_are_in_the_trace(server: Server, tmp_path: Path) -> None:
    (worker,) = (trace for trace in taken(server, tmp_path)["traces"] if trace["kind"] == "worker")
    query = "SELECT count(*) AS steps FROM steps WHERE phase = 'decode' AND batch_size = 1"
    command = [sys.executable, "-m", "stepscope", "sql", worker["path"], query, "--format", "json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 -- our own command
    assert json.loads(answer.stdout)["rows"][0][0] in {2, 3}  # one of the three may be the prefill of a new request


def test_a_server_without_a_profiler_is_told_how_to_restart(unprofiled: Server, tmp_path: Path) -> None:
    code, stdout, stderr = capture(unprofiled.url, "--folder", tmp_path / "traces")
    assert (code, stdout) == (5, "")
    assert is_one_sentence(stderr)
    assert "without a profiler" in stderr
    line = stderr.partition("restart it with: ")[2]
    assert "vllm serve" in line  # the server's own command line, since it runs on this machine
    assert "--load-format dummy" in line
    assert "--profiler-config '{" in line


def test_a_server_that_is_killed_while_it_records(mortal: Server, tmp_path: Path) -> None:
    running = recording(mortal, "--folder", tmp_path / "traces")
    mortal.kill()
    code, stdout, stderr = running.ended(60)
    assert (code, stdout) == (5, "")
    assert is_one_sentence(stderr)
    assert mortal.url in stderr


def test_an_engine_that_dies_while_the_front_end_lives(mortal: Server, tmp_path: Path) -> None:
    running = recording(mortal, "--folder", tmp_path / "traces")
    (engine,) = (pid for pid in mortal.processes() if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(engine, signal.SIGKILL)
    code, stdout, stderr = running.ended(60)
    assert (code, stdout) == (5, "")
    assert is_one_sentence(stderr)


@contextmanager
def no_file_above(server: Server, size: int) -> Iterator[None]:
    """Let no process of the server write a larger file, as on a disk that is full."""
    processes = server.processes()
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in processes}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        for pid, limits in before.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


def test_traces_that_could_not_be_written_are_refused(server: Server, tmp_path: Path) -> None:
    # torch writes a plain file of some MB first and packs it: here it packs nothing, and the server says all is well.
    with no_file_above(server, 1_000_000):
        code, _, stderr = capture(server.url, *SHORT, "--folder", tmp_path / "cut")
    assert code == 5
    assert is_one_sentence(stderr)
    assert "rank0" in stderr
    taken(server, tmp_path / "after")


@pytest.fixture
def full_folder(server: Server) -> Iterator[Path]:
    """The server's folder for traces on a disk of 64 kB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    server.traces.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(server.traces)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:  # noqa: S603 -- our own command
        pytest.skip("a small disk cannot be mounted here")
    yield server.traces
    subprocess.run(["umount", str(server.traces)], check=True)  # noqa: S603, S607 -- our own command


def test_a_disk_that_is_full_is_said_before_anything_is_recorded(
    server: Server, full_folder: Path, tmp_path: Path
) -> None:
    before = times(server, "Profiler started.")
    code, stdout, stderr = capture(server.url, *SHORT, "--folder", tmp_path)
    assert (code, stdout) == (5, "")
    assert is_one_sentence(stderr)
    assert f"the disk that holds {full_folder} is full" in stderr
    assert times(server, "Profiler started.") == before


def test_two_captures_at_once(server: Server, tmp_path: Path) -> None:
    first = recording(server, "--folder", tmp_path / "first")
    code, stdout, stderr = capture(server.url, *SHORT, "--folder", tmp_path / "second")
    assert (code, stdout) == (5, "")
    assert is_one_sentence(stderr)
    assert "another capture from this server is under way" in stderr
    assert first.ended()[0] == 0
    taken(server, tmp_path / "after")


def test_a_recording_that_somebody_else_began_is_left_alone(mortal: Server, tmp_path: Path) -> None:
    # An idle worker that records stacks fills its trace with its waiting, so this one is told to record later.
    assert mortal.post("/start_profile", {"delay_iterations": 10**6}) == 200
    code, stdout, stderr = capture(mortal.url, *SHORT, "--folder", tmp_path / "traces")
    assert (code, stdout) == (5, "")
    assert is_one_sentence(stderr)
    assert "if it is recording already, end that with a POST to /stop_profile" in stderr
    assert times(mortal, "Stopping profiler...") == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_capture_leaves_the_server_not_recording(
    server: Server, tmp_path: Path, number: signal.Signals
) -> None:
    stopped = times(server, "Profiler stopped.")
    running = recording(server, "--folder", tmp_path / "interrupted")
    running.process.send_signal(number)
    code, stdout, stderr = running.ended(60)
    assert (code, stdout) == (130, "")
    assert "Traceback" not in stderr
    assert times(server, "Profiler stopped.") == stopped + 1
    taken(server, tmp_path / "after")


def test_a_capture_interrupted_before_it_records(server: Server, tmp_path: Path) -> None:
    started = times(server, "Profiler started.")
    requests = times(server, "POST /v1/completions")
    running = Running(server.url, *LONG, "--folder", tmp_path / "interrupted")
    wait_for_line(server, "POST /v1/completions", requests + 1)
    running.process.send_signal(signal.SIGINT)
    assert running.ended(60)[0] == 130
    assert times(server, "Profiler started.") == started
    taken(server, tmp_path / "after")
