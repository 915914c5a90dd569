"""`stepscope capture torch`: real small programs in processes of their own, and all that can go wrong with them."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.processes import is_one_sentence

pytest.importorskip("torch")

import stepscope
from stepscope.capture.torch_program import run_program
from stepscope.errors import PartNotInstalledError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Result = subprocess.CompletedProcess[str]

PLAIN = """
import sys, torch
from torch import nn
torch.set_num_threads(1)
model, loss = nn.Sequential(nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, 7)), nn.MSELoss()
for number in range(int(sys.argv[1])):
    x = torch.ones(number + 1, 7)
    loss(model(x), x).backward()
print("ran to its end")
"""
"""A training loop, whose batch tells the step's number."""
MARKED = """
import sys, torch, stepscope
from torch import nn
torch.set_num_threads(1)
model = nn.Linear(7, 7)
for number in range(20):
    model(torch.ones(100 + number, 7)).relu()
with stepscope.profile(steps=4, wait=1, output="nowhere") as p:
    for number in range(int(sys.argv[1])):
        model(torch.ones(number + 1, 7)).relu()
        p.step()
"""
"""A program that warms up for long, and then says which steps it means."""
SAID = "the program marks no steps: each is an outermost call of {}; if that is wrong, mark them with stepscope.profile"


def process(*arguments: str | Path, **environment: str) -> Result:
    """Run a command, with something to read and time for what torch loads."""
    command = [sys.executable, "-W", "error", "-m", "stepscope", *map(str, arguments)]
    return subprocess.run(  # noqa: S603 -- our own command
        command,
        input="what it reads",
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, **environment},
    )


@pytest.fixture(name="capture")
def capture_fixture(tmp_path: Path) -> Callable[..., Result]:
    """Run a program's text with arguments under `capture torch`, its traces going to the folder `traces`."""

    def capture(text: str, *arguments: str, options: Sequence[str] = (), **environment: str) -> Result:
        program = tmp_path / "program.py"
        program.write_text(text)
        output = ("--folder", str(tmp_path / "traces"))
        command = (sys.executable, str(program), *arguments)
        return process("capture", "torch", *output, *options, "--", *command, **environment)

    return capture


def traces(folder: Path) -> list[Path]:
    return sorted(folder.joinpath("traces").iterdir()) if folder.joinpath("traces").exists() else []


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return sorted((event for event in found if event.get("ph") == "X"), key=lambda event: float(event["ts"]))


def batches(path: Path) -> list[int]:
    """Rows of the first relu's input in each step."""
    return [event["args"]["Input Dims"][0][0] for event in events(path) if event["name"] == "aten::relu"]


def steps_of(path: Path) -> list[str]:
    return [event["name"] for event in events(path) if event.get("cat") == "user_annotation"]


def notes(done: Result) -> list[str]:
    """What stepscope said, without what torch says."""
    said = [line.removeprefix("stepscope: ") for line in done.stderr.splitlines() if line.startswith("stepscope: ")]
    assert "Traceback" not in done.stderr
    return said


def test_a_program_that_marks_no_steps(capture: Callable[..., Result], tmp_path: Path) -> None:
    """Its model's calls are steps, from one to the next, with what lies between; its loss's calls are none."""
    done = capture(PLAIN, "12")
    (path,) = traces(tmp_path)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["ran to its end", str(path)])
    assert notes(done) == [SAID.format("Sequential")]
    assert batches(path) == [4, 5, 6, 7, 8]
    assert steps_of(path) == [f"ProfilerStep#{number}" for number in range(3, 8)]
    losses = [event for event in events(path) if event["name"] == "aten::mse_loss"]
    backwards = [
        event for event in events(path) if event["name"] == "autograd::engine::evaluate_function: ReluBackward0"
    ]
    assert (len(losses), len(backwards)) == (5, 5)
    assert stepscope.load(path).annotations["name"].to_list() == steps_of(path)


def test_the_last_step_ends_with_the_program(capture: Callable[..., Result], tmp_path: Path) -> None:
    done = capture(PLAIN, "8")
    (path,) = traces(tmp_path)
    assert (done.returncode, batches(path)) == (0, [4, 5, 6, 7, 8])
    assert notes(done) == [SAID.format("Sequential")]


def test_fewer_steps_than_asked_for_are_said(capture: Callable[..., Result], tmp_path: Path) -> None:
    done = capture(PLAIN, "5")
    (path,) = traces(tmp_path)
    assert (done.returncode, batches(path)) == (0, [4, 5])
    said = f"{path.name}: 2 of the 5 steps asked for were recorded: the program had no more"
    assert notes(done) == [said, SAID.format("Sequential")]


def test_a_program_without_a_step_to_record(capture: Callable[..., Result], tmp_path: Path) -> None:
    done = capture(PLAIN, "3")
    assert (done.returncode, done.stdout) == (5, "ran to its end\n")
    (said,) = notes(done)
    assert said.startswith(
        "no step was recorded: step 4 would have been the first, and did not end (an outermost call of"
    )
    assert said.endswith(" Sequential begins each); --wait makes it an earlier one")
    assert not (tmp_path / "traces").exists()


def test_what_the_command_line_asks_for(capture: Callable[..., Result], tmp_path: Path) -> None:
    done = capture(PLAIN, "9", options=("--steps", "2", "--wait", "1", "--stacks"))
    (path,) = traces(tmp_path)
    assert (done.returncode, batches(path)) == (0, [2, 3])
    frames = [event["name"] for event in events(path) if event.get("cat") == "python_function"]
    assert "nn.Module: Sequential_0" in frames
    # what counts the calls is around no op: else it would be taken for the user's line that called
    every = events(path)
    (relu, _) = [event for event in every if event["name"] == "aten::relu"]
    start, end = float(relu["ts"]), float(relu["ts"]) + float(relu["dur"])
    around = [
        event["name"].split("(")[0]
        for event in every
        if event.get("cat") == "python_function"
        and float(event["ts"]) <= start < end <= float(event["ts"]) + float(event["dur"])
    ]
    assert any(name.endswith("program.py") for name in around)
    assert not [name for name in around if "stepscope" in name]


def test_the_first_step_can_be_the_first_recorded(capture: Callable[..., Result], tmp_path: Path) -> None:
    assert capture(PLAIN, "9", options=("--steps", "2", "--wait", "0")).returncode == 0
    (path,) = traces(tmp_path)
    assert batches(path) == [1, 2]


@pytest.mark.parametrize(("options", "expected"), [((), [2, 3, 4, 5]), (("--steps", "1", "--wait", "2"), [3])])
def test_a_program_that_marks_its_steps(
    options: tuple[str, ...], expected: list[int], capture: Callable[..., Result], tmp_path: Path
) -> None:
    """What it marks is recorded, and nothing else; the command line goes before what the program asks for."""
    done = capture(MARKED, "9", options=options)
    (path,) = traces(tmp_path)
    assert (done.returncode, batches(path)) == (0, expected)
    assert notes(done) == []
    assert not (tmp_path / "nowhere").exists()


def test_a_program_that_marks_too_few_steps(capture: Callable[..., Result], tmp_path: Path) -> None:
    done = capture(MARKED, "1")
    assert done.returncode == 5
    (said,) = notes(done)
    assert said.startswith(
        "no step was recorded: step 2 would have been the first, and did not end (step() ends each);"
    )
    assert not (tmp_path / "traces").exists()


LARGEST = """
import torch
from torch import nn
torch.set_num_threads(1)
small, large, lazy = nn.Linear(7, 7), nn.Linear(7, 70), nn.LazyLinear(30)
for number in range(6):
    small(torch.ones(number + 1, 7)).relu()
for number in range(9):
    small(torch.ones(50, 7))
    lazy(torch.ones(1, 7))
    large(torch.ones(number + 1, 7)).relu()
"""


def test_counting_begins_again_with_a_larger_module(capture: Callable[..., Result], tmp_path: Path) -> None:
    assert capture(LARGEST).returncode == 0
    (path,) = traces(tmp_path)
    assert batches(path) == [4, 5, 6, 7, 8]


OTHER_THREAD = """
import threading, torch
from torch import nn
torch.set_num_threads(1)
model, stop = nn.Linear(7, 7), threading.Event()

def beside():
    while not stop.is_set():
        model(torch.ones(99, 7)).relu()

model(torch.ones(1, 7)).relu()
thread = threading.Thread(target=beside)
thread.start()
for number in range(1, 9):
    model(torch.ones(number + 1, 7)).relu()
stop.set()
thread.join()
"""


def test_calls_of_another_thread_are_no_steps(capture: Callable[..., Result], tmp_path: Path) -> None:
    assert capture(OTHER_THREAD).returncode == 0
    (path,) = traces(tmp_path)
    assert batches(path) == [4, 5, 6, 7, 8]


COMPILED = """
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
torch.set_num_threads(1)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(7, 7) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x

for in_place in (False, True):
    counter, model = CompileCounter(), Model()
    if in_place:
        model.compile(backend=counter, fullgraph=True)
    else:
        model = torch.compile(model, backend=counter, fullgraph=True)
    for _ in range(9):
        model(torch.ones(2, 7))
    print(counter.frame_count, counter.op_count)
traced = torch.jit.trace(Model(), torch.ones(2, 7))
"""


def test_compiled_modules_are_counted_and_compiled_as_ever(capture: Callable[..., Result], tmp_path: Path) -> None:
    """One graph of three linears and three relus each: nothing of the counting is compiled or compiles anew."""
    done = capture(COMPILED)
    (path,) = traces(tmp_path)
    assert done.stdout.splitlines()[:2] == ["1 6", "1 6"]
    assert (done.returncode, notes(done)) == (0, [SAID.format("Model")])
    assert len(steps_of(path)) == 5


AROUND = """
import json, os, sys
sys.stdout.write(json.dumps([dict(os.environ), sys.path[1:], os.getcwd(), sys.argv[1:], sys.stdin.read()]))
sys.exit(7)
"""


def test_the_program_runs_as_without_it(capture: Callable[..., Result], tmp_path: Path) -> None:
    """Its environment, arguments, folder, input and paths; only PYTHONPATH's first folder and wishes are added."""
    arguments = ("--steps", "x y", "--", "--wait=7")
    done = capture(AROUND, *arguments, HOME=str(tmp_path))
    command = [sys.executable, str(tmp_path / "program.py"), *arguments]
    alone = subprocess.run(  # noqa: S603 -- our own command
        command,
        input="what it reads",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    (environment, *rest), (environment_alone, *rest_alone) = json.loads(done.stdout), json.loads(alone.stdout)
    assert rest == rest_alone
    assert rest[-1] == "what it reads"
    assert rest[2] == list(arguments)
    added = {name for name in environment if name not in environment_alone}
    assert {name for name in added if not name.startswith("STEPSCOPE_PROFILE_")} <= {"PYTHONPATH"}
    before = environment_alone.pop("PYTHONPATH", "")
    assert environment["PYTHONPATH"].split(os.pathsep)[1:] == [entry for entry in [before] if entry]
    assert {name: environment[name] for name in environment_alone} == environment_alone
    assert done.returncode == 5
    assert notes(done) == ["the program ended with exit code 7; nothing was recorded"]


def test_what_it_customises_itself_still_happens(capture: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys; sys.customised = True")
    paths = os.pathsep.join(filter(None, [str(tmp_path / "site"), os.environ.get("PYTHONPATH")]))
    done = capture("import sys; assert sys.customised\n" + PLAIN, "8", PYTHONPATH=paths)
    assert (done.returncode, len(traces(tmp_path))) == (0, 1)


@pytest.mark.parametrize(("count", "kept"), [("6", False), ("12", True)])
def test_a_failing_program(count: str, kept: bool, capture: Callable[..., Result], tmp_path: Path) -> None:  # noqa: FBT001 -- what is expected
    """A trace that was whole by then stays; one that was not is not written."""
    done = capture(PLAIN + "raise ValueError('broken')", count)
    assert done.returncode == 5
    assert "ValueError: broken" in done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("stepscope: ")]
    (path,) = traces(tmp_path) if kept else [None]
    ending = f"what it had recorded is whole: {path}" if kept else "nothing was recorded"
    assert said == [f"stepscope: the program ended with exit code 1; {ending}"]
    assert (tmp_path / "traces").exists() is kept


KILLED = """
import gzip, os, signal
def kill(*_): os.kill(os.getpid(), signal.SIGKILL)
gzip.open = kill
"""


def test_a_program_that_is_killed_while_it_writes(capture: Callable[..., Result], tmp_path: Path) -> None:
    done = capture(KILLED + PLAIN, "12")
    assert done.returncode == 5
    assert notes(done) == ["the program ended by signal SIGKILL; nothing was recorded"]
    assert not (tmp_path / "traces").exists()


def test_a_recording_that_fails_does_not_fail_the_program(capture: Callable[..., Result], tmp_path: Path) -> None:
    full = "import gzip\ndef full(*_): raise OSError(28, 'No space left on device')\ngzip.open = full\n"
    done = capture(full + PLAIN, "12")
    assert (done.returncode, done.stdout) == (5, "ran to its end\n")
    folder = tmp_path / "traces"
    said = f"nothing was recorded: UsageError: {folder}: cannot be written (No space left on device)"
    assert notes(done) == [said]
    assert not folder.exists()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print()", "the program did not load torch.nn"),
        ("import torch; torch.ones(2).relu()", "the program called no nn.Module with parameters, or only within"),
    ],
)
def test_a_program_of_which_nothing_can_be_recorded(
    program: str, reason: str, capture: Callable[..., Result], tmp_path: Path
) -> None:
    done = capture(program)
    assert done.returncode == 5
    assert is_one_sentence(done.stderr)
    assert f"nothing was recorded: {reason}" in done.stderr
    assert not (tmp_path / "traces").exists()


def test_a_python_that_is_kept_out_is_said(tmp_path: Path) -> None:
    done = process("capture", "torch", "--folder", tmp_path / "traces", "--", sys.executable, "-I", "-c", "1")
    assert done.returncode == 5
    (said,) = notes(done)
    assert said.startswith("nothing was recorded: the program started no Python that reads PYTHONPATH (its options -I,")


@pytest.fixture(name="bare", scope="module")
def bare_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without any package."""
    folder = tmp_path_factory.mktemp("bare") / "env"
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


def test_a_python_without_stepscope_is_told_how_to_install_it(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(PartNotInstalledError) as refused:
        run_program([str(bare), "-c", "print('it ran')"], tmp_path / "traces", steps=None, wait=None, stacks=False)
    assert str(refused.value) == f"the program's Python has no stepscope: {bare} -m pip install stepscope"
    assert refused.value.exit_code == 4
    assert capfd.readouterr().out == ""  # said before the program runs, not after
    assert not (tmp_path / "traces").exists()


def test_a_python_without_torch_is_told_how_to_install_it(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for package in ("stepscope", "msgspec"):
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        (tmp_path / package).symlink_to(Path(spec.origin).parent)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(PartNotInstalledError) as refused:
        run_program([str(bare), "-c", "print('it ran')"], tmp_path / "traces", steps=None, wait=None, stacks=False)
    assert str(refused.value) == f"the program's Python has no torch: {bare} -m pip install torch"
    assert capfd.readouterr().out == ""


def test_a_helper_without_torch_is_no_obstacle(bare: Path, capture: Callable[..., Result], tmp_path: Path) -> None:
    helped = f"import subprocess; subprocess.run([{str(bare)!r}, '-c', '1'], check=True)\n"
    assert capture(helped + PLAIN, "8").returncode == 0
    assert len(traces(tmp_path)) == 1


def test_ranks_write_a_file_each(tmp_path: Path) -> None:
    """With torch's own launcher, which starts them through another Python."""
    program = tmp_path / "program.py"
    program.write_text(PLAIN)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    done = process("capture", "torch", "--folder", tmp_path / "traces", "--", *launcher, program, "8")
    assert done.returncode == 0
    one, other = traces(tmp_path)
    assert [stepscope.load(path).rank for path in (one, other)] == [0, 1]
    assert (one.name[:6], other.name[:6]) == ("rank0-", "rank1-")
    assert batches(one) == batches(other) == [4, 5, 6, 7, 8]
    assert {line for line in done.stdout.splitlines() if line.endswith(".gz")} == {str(one), str(other)}


def test_a_diagnosis_at_once(capture: Callable[..., Result]) -> None:
    """Without a GPU there is little to diagnose, and it says so."""
    done = capture(PLAIN, "8", options=("--diagnose",))
    assert done.returncode == 0
    assert "no GPU" in " ".join(done.stdout.split())


WAITS = """
import signal, sys, time, torch
from torch import nn
model = nn.Linear(7, 7)
for number in range(5):
    model(torch.ones(1, 7))
received = []
if sys.argv[1] == "handle":
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda number, frame: received.append(number))
print("ready", flush=True)
for _ in range(600):
    if received:
        time.sleep(0.5)
        print(received, flush=True)
        sys.exit(0)
    time.sleep(0.05)
"""
"""A program in its second recorded step."""


def started(tmp_path: Path, how: str, **options: Any) -> subprocess.Popen[str]:
    program = tmp_path / "program.py"
    program.write_text(WAITS)
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "stepscope",
        "capture",
        "torch",
        "--folder",
        str(tmp_path / "traces"),
    ]
    return subprocess.Popen([*command, "--", sys.executable, str(program), how], text=True, **options)  # noqa: S603 -- ours


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_and_then_the_command(number: signal.Signals, tmp_path: Path) -> None:
    with started(tmp_path, "die", stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(number)
        _, err = running.communicate(timeout=30)  # ends once the program has closed its ends too
    assert running.returncode == (130 if number == signal.SIGINT else -number)
    said = [line for line in err.splitlines() if line.startswith("stepscope: ")]
    assert said == (["stepscope: interrupted"] if number == signal.SIGINT else [])
    assert not (tmp_path / "traces").exists()


def test_a_program_that_ends_well_on_a_signal_is_captured(tmp_path: Path) -> None:
    """As one does that runs until it is interrupted."""
    with started(tmp_path, "handle", stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    (path,) = traces(tmp_path)
    assert (running.returncode, out.splitlines()) == (0, ["[2]", str(path)])
    assert f"{path.name}: 2 of the 5 steps asked for were recorded" in err


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are terminals to imitate on POSIX systems only")
def test_an_interrupt_from_the_keyboard_reaches_the_program_once(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    controlling = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    )
    program = tmp_path / "program.py"
    program.write_text(WAITS)
    command = [sys.executable, "-m", "stepscope", "capture", "torch", "--folder", str(tmp_path / "traces")]
    command = [sys.executable, "-c", controlling, *command, "--", sys.executable, str(program), "handle"]
    with subprocess.Popen(  # noqa: S603 -- our own command
        command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, start_new_session=True
    ) as running:
        os.close(theirs)
        assert _until(ours, b"ready")
        os.write(ours, b"\x03")
        assert _until(ours, b"[2]")
        assert running.wait(30) == 0
    os.close(ours)
    assert len(traces(tmp_path)) == 1


def _until(terminal: int, text: bytes) -> bool:
    shown, end = b"", time.monotonic() + 60
    while text not in shown and time.monotonic() < end:
        try:
            shown += os.read(terminal, 1 << 16)
        except OSError:  # how Linux says that the other end has hung up
            break
    return text in shown


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "capture torch takes the program behind --"),
        (("--", "no-such-program"), "no-such-program: no such program"),
        (("--steps", "0", "--", "true"), "--steps"),
        (("--wait", "-1", "--", "true"), "--wait"),
        (("--steps", "9999999", "--", "true"), "steps 9999999: must be"),
        (("--nonsense", "--", "true"), "Unknown option"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], reason: str, run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = run("capture", "torch", *arguments)
    assert (code, out) == (2, "")
    assert is_one_sentence(err)
    assert reason in err


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    """What is in it would be taken for this program's."""
    (tmp_path / "old.json.gz").touch()
    code, out, err = run("capture", "torch", "--folder", tmp_path, "--", "true")
    assert (code, out) == (2, "")
    assert "is not empty" in err
    assert is_one_sentence(err)
    assert [path.name for path in tmp_path.iterdir()] == ["old.json.gz"]


def test_an_empty_folder_of_the_user_stays(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    assert run("capture", "torch", "--folder", folder, "--", "true")[0] == 5
    assert folder.is_dir()
