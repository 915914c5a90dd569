"""Runs a PyTorch program as it is, and brings back the traces of some of its steps."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from stepscope.capture import torch_exchange
from stepscope.capture.torch_exchange import Recorded, Report, Wishes, read_reports
from stepscope.capture.torch_profile import STEPS, WAIT, fewer_steps
from stepscope.errors import DeviceError, ExitCode, PartNotInstalledError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

_BOOTSTRAP = Path(__file__).parent / "bootstrap"
_PASSED_ON = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]
_INTERRUPTED = (-signal.SIGINT, ExitCode.INTERRUPTED)
"""How a program ends that was interrupted: by the signal, or as a shell says it."""
_HIDDEN = ".stepscope-*"


@dataclass(frozen=True, slots=True)
class Captured:
    """What a program recorded."""

    recorded: tuple[Recorded, ...]
    """Each with its file."""
    notes: tuple[str, ...]


def run_program(command: Sequence[str], folder: Path, *, steps: int | None, wait: int | None, stacks: bool) -> Captured:
    """Run a program with this process's environment and streams, and return the traces of its steps.

    `steps` and `wait` go before what the program itself asks of `stepscope.profile`; None leaves it to the program.
    Signals that arrive meanwhile are passed on to it.

    Raises:
        UsageError: there is no such program, or the folder cannot take its traces.
        PartNotInstalledError: the Python that runs it has no torch, or no stepscope.
        DeviceError: it failed, or nothing was recorded.
        KeyboardInterrupt: it was interrupted.
    """
    Wishes(STEPS if steps is None else steps, WAIT if wait is None else wait, stacks, folder)
    if not command:
        raise UsageError(
            "capture torch takes the program behind --, as in: stepscope capture torch -- python script.py"
        )
    if shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]}: no such program")
    is_new = _make_folder(folder)
    try:
        with TemporaryDirectory(prefix="stepscope-") as reports:
            environment = {**os.environ, **_wishes(folder.absolute(), steps, wait, stacks=stacks)}
            environment |= {torch_exchange.REPORTS: reports, torch_exchange.COMMAND: str(os.getpid())}
            paths = [str(_BOOTSTRAP), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(paths)
            code, ending = _run(command, environment)
            told = read_reports(Path(reports))
        captured = _captured(told)
        if ending is not None and ending != signal.SIGINT:
            signal.raise_signal(ending)
        if code:
            _fail(code, captured, told, was_interrupted=ending == signal.SIGINT)
        if not captured.recorded:
            raise _nothing(told)
        return captured
    finally:
        for left in folder.glob(_HIDDEN):  # by a process that was killed while it wrote
            shutil.rmtree(left, ignore_errors=True)
        if is_new and not any(folder.iterdir()):
            folder.rmdir()


def _wishes(folder: Path, steps: int | None, wait: int | None, *, stacks: bool) -> dict[str, str]:
    wishes = {torch_exchange.OUTPUT: str(folder)}
    if steps is not None:
        wishes[torch_exchange.STEPS] = str(steps)
    if wait is not None:
        wishes[torch_exchange.WAIT] = str(wait)
    if stacks:
        wishes[torch_exchange.STACKS] = "1"
    return wishes


def _make_folder(folder: Path) -> bool:
    """Make the folder and tell whether it is new; traces that are there already would be taken for this program's."""
    try:
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"--folder {folder}: is not empty; name a new folder")
        with TemporaryDirectory(dir=folder, prefix=_HIDDEN.removesuffix("*")):
            pass
    except OSError as error:
        raise UsageError(f"--folder {folder}: cannot be written ({error.strerror})") from error
    return is_new


def _run(command: Sequence[str], environment: dict[str, str]) -> tuple[int, int | None]:
    """Return the program's exit code, and the last signal that was meant to end it."""
    try:
        process = subprocess.Popen(command, env=environment)  # noqa: S603 -- the user's own command
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot be run ({error.strerror})") from error
    with process, _passing_signals_on(process) as received:
        code = process.wait()
    return code, received[-1] if received else None


@contextmanager
def _passing_signals_on(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Pass signals on, and note them; one from the terminal's keyboard has reached the program already."""
    received: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if number not in {signal.SIGINT, getattr(signal, "SIGQUIT", None)} or not _is_at_the_keyboard():
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_at_the_keyboard() -> bool:
    """Tell whether what is typed at a terminal interrupts this process, and the program with it."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:  # there is none
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _captured(told: Sequence[Report]) -> Captured:
    recorded = [each for report in told for each in report.recorded]
    whole = tuple(each for each in recorded if each.file is not None and Path(each.file).is_file())
    notes = [f"{_name(each)}{fewer_steps(each)}" for each in recorded if each.steps < each.asked]
    modules = sorted({each.module for each in whole if each.module})
    if modules:
        notes.append(
            f"the program marks no steps: each is an outermost call of {', '.join(modules)}; if that is wrong, mark"
            " them with stepscope.profile"
        )
    if whole:
        notes += [f"{report.python}: recording was given up: {report.failure}" for report in told if report.failure]
    return Captured(whole, tuple(notes))


def _name(recorded: Recorded) -> str:
    return f"{Path(recorded.file).name}: " if recorded.file else ""


def _fail(code: int, captured: Captured, told: Sequence[Report], *, was_interrupted: bool) -> None:
    """Say how the program ended, unless something that it lacks explains it."""
    if not captured.recorded:
        missing = _missing(told)
        if missing is not None:
            raise missing
    if was_interrupted or code in _INTERRUPTED:
        raise KeyboardInterrupt
    how = f"with exit code {code}" if code > 0 else f"by signal {_signal_name(-code)}"
    traces = ", ".join(str(each.file) for each in captured.recorded)
    kept = f"; what it had recorded is whole: {traces}" if traces else "; nothing was recorded"
    raise DeviceError(f"the program ended {how}{kept}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _nothing(told: Sequence[Report]) -> Exception:
    """Say why nothing was recorded, from what the program's Pythons told."""
    missing = _missing(told)
    if missing is not None:
        return missing
    failures = [report.failure for report in told if report.failure]
    counted = [each for report in told for each in report.recorded]
    if failures:
        return DeviceError(f"nothing was recorded: {failures[0]}")
    if counted:
        hint = "; --wait makes it an earlier one" if counted[0].wait else ""
        return DeviceError(f"{fewer_steps(counted[0])}{hint}")
    if any(report.loaded_torch for report in told):
        return DeviceError(
            "nothing was recorded: the program called no nn.Module with parameters, or only within compiled functions"
            " and graphs; mark its steps with stepscope.profile"
        )
    if told:
        return DeviceError("nothing was recorded: the program did not load torch.nn")
    return DeviceError(
        "nothing was recorded: the program started no Python that reads PYTHONPATH (its options -I, -E and -S prevent"
        " it)"
    )


def _missing(told: Sequence[Report]) -> PartNotInstalledError | None:
    """Say what a Python lacks, unless another one of the program had it."""
    lacking = [report for report in told if report.missing]
    if not lacking or len(lacking) < len(told):
        return None
    python, package = lacking[0].python, lacking[0].missing
    return PartNotInstalledError(f"the program's Python has no {package}: {python} -m pip install {package}")
