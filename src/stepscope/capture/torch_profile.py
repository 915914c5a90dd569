"""`stepscope.profile`: records some steps of a plain PyTorch program, with what a diagnosis needs to see."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

from stepscope.capture import torch_exchange
from stepscope.capture.torch_exchange import Recorded, Wishes
from stepscope.errors import PartNotInstalledError, StepscopeError, UsageError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from torch.profiler import ProfilerAction
    from torch.profiler import profile as TorchProfile  # noqa: N812 -- a class

STEPS = 5
WAIT = 3
"""One for what is loaded at first use, one for what is compiled anew then, and one for the profiler's own start."""
_COMPRESSION = 6
"""Of gzip: the highest takes three times as long and saves a few percent."""


class Substitute(Protocol):
    """What finds the steps of a program that does not mark them."""

    def withdraw(self) -> None:
        """Leave the program to itself, and take back what was recorded."""


class Recording:
    """A run of torch's profiler over `wait` + `steps` steps of this thread, written whole or not at all.

    Its steps are torch's `ProfilerStep#N`, from one call of `step` to the next.
    """

    def __init__(self, wishes: Wishes, *, module: str | None = None) -> None:
        self.wishes = wishes
        self.path: Path | None = None
        """The trace, once it is written."""
        self.ended = False
        self._module = module
        self._steps_ended = 0
        self._failure: StepscopeError | None = None
        self._discarded = False
        self._profiler = self._begin()

    @property
    def steps(self) -> int:
        """Whole steps recorded so far."""
        return min(max(self._steps_ended - self.wishes.wait, 0), self.wishes.steps)

    def step(self) -> None:
        """End a step and begin the next; after the last one that was asked for, write the trace.

        Raises:
            UsageError: the trace cannot be written.
        """
        if self.ended:
            return
        self._steps_ended += 1
        self._tell_rank()
        self._profiler.step()
        if self.steps == self.wishes.steps:
            self.end()

    def end(self) -> None:
        """Stop, and write what was recorded; nothing where no step was.

        Raises:
            UsageError: the trace cannot be written.
        """
        self._stop()
        if self._failure is not None:
            raise self._failure

    def discard(self) -> None:
        """Stop, and write nothing."""
        self._discarded = True
        self._stop()

    def _begin(self) -> TorchProfile:
        global _running  # noqa: PLW0603 -- there is one profiler in a process
        try:
            import torch  # noqa: PLC0415 -- importing stepscope must not import torch
            from torch.profiler import profile as torch_profile  # noqa: PLC0415 -- the same
            from torch.profiler import supported_activities  # noqa: PLC0415 -- the same
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise PartNotInstalledError("stepscope.profile needs torch: pip install 'stepscope[gpu]'") from None
        if _running is not None:
            raise UsageError("stepscope.profile is recording already: end that block before another begins")
        if torch._C._autograd._profiler_enabled():  # noqa: SLF001 -- there is no public way to ask
            raise UsageError("torch's profiler is recording already: stepscope.profile cannot record within it")
        _make_folder(self.wishes.output)
        self._profiler = torch_profile(
            activities=supported_activities(),  # type: ignore[no-untyped-call] # the CPU, and the GPU that torch sees
            schedule=self._action,
            on_trace_ready=self._write,
            record_shapes=True,
            with_stack=self.wishes.stacks,
        )
        self._tell_rank()
        self._profiler.start()
        _running = self
        return self._profiler

    def _action(self, step: int) -> ProfilerAction:
        """Return what the profiler does in a step, counted from 0; torch's own schedule warns where nothing waits."""
        from torch.profiler import ProfilerAction  # noqa: PLC0415 -- as above

        first, last = self.wishes.wait, self.wishes.wait + self.wishes.steps - 1
        if step < first - 1 or step > last:
            return ProfilerAction.NONE
        if step < first:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if step < last else ProfilerAction.RECORD_AND_SAVE

    def _tell_rank(self) -> None:
        """Tell the trace the rank that the launcher gave, where torch will not: it tells that of its groups only."""
        rank, size = _number("RANK"), _number("WORLD_SIZE")
        if self._steps_ended == self.wishes.wait and rank is not None and _rank_of_group() is None:
            info = {"rank": rank} if size is None else {"rank": rank, "world_size": size}
            self._profiler.preset_metadata_json("distributedInfo", json.dumps(info))

    def _stop(self) -> None:
        global _running  # noqa: PLW0603 -- as above
        if self.ended:
            return
        self.ended = True
        if _running is self:
            _running = None
        self._profiler.stop()

    def _write(self, profiler: TorchProfile) -> None:
        """Write the trace; a failure waits until torch has put everything back."""
        if self._discarded or not self.steps:
            return
        try:
            self.path = _write(profiler, self.wishes.output)
        except OSError as error:
            self._failure = _cannot_be_written(self.wishes.output, error)
        except StepscopeError as error:
            self._failure = error

    def told(self) -> Recorded:
        """Return what came of it."""
        return Recorded(
            file=None if self.path is None else str(self.path),
            steps=self.steps,
            asked=self.wishes.steps,
            wait=self.wishes.wait,
            module=self._module,
        )


_running: Recording | None = None
substitute: Substitute | None = None
"""What finds this program's steps as long as it marks none."""


class profile:  # noqa: N801 -- a word of the statement, as torch's own is
    """Record `steps` steps of this program, each from one `step()` to the next.

        with stepscope.profile(steps=5, output="traces") as p:
            for batch in data:
                model(batch)
                p.step()

    The first `wait` steps are not recorded, since they load, compile and allocate; in the last of them the profiler
    runs already, so that its own start is not in the trace either. After the last step the trace is written and nothing
    is recorded any more. Each process writes its own trace to the folder `output`, under its rank if it has one.
    `stacks` adds Python frames, which name the line of code, make the trace several times as large and the host slower.

    `stepscope capture torch` and the environment variables STEPSCOPE_PROFILE_STEPS, _WAIT, _STACKS (0 or 1) and _OUTPUT
    go before the arguments. An exception within the block is passed on, and nothing is written then. The block warns
    (RuntimeWarning) where it ends before its steps do.

    Raises:
        UsageError: a wish that cannot be, a profiler that records already, or a folder that cannot be written.
        PartNotInstalledError: there is no torch.
    """

    def __init__(
        self, steps: int = STEPS, *, wait: int = WAIT, stacks: bool = False, output: str | os.PathLike[str] = "."
    ) -> None:
        self._wishes = Wishes(steps, wait, stacks, Path(output).absolute()).unless_told()
        self._recording: Recording | None = None

    @property
    def path(self) -> Path | None:
        """The trace; None as long as there is none."""
        return self._recording.path if self._recording else None

    def __enter__(self) -> Self:
        """Begin the first step."""
        if substitute is not None:
            substitute.withdraw()
        self._recording = Recording(self._wishes)
        return self

    def step(self) -> None:
        """End a step and begin the next.

        Raises:
            UsageError: the trace cannot be written, or no block was entered.
        """
        if self._recording is None:
            raise UsageError("stepscope.profile: step() is called outside the block")
        self._recording.step()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop recording, and write what was recorded unless the block failed."""
        recording = self._recording
        if recording is None:
            return
        reporter = torch_exchange.reporter
        if kind is not None:
            recording.discard()
            if reporter is not None and recording.path is None:
                reporter.gives_up(f"the block of stepscope.profile failed ({kind.__name__})")
            return
        recording.end()
        if reporter is not None:
            reporter.adds(recording.told())
        elif recording.steps < self._wishes.steps:
            warnings.warn(fewer_steps(recording.told()), RuntimeWarning, stacklevel=2)


def fewer_steps(recorded: Recorded) -> str:
    """Say that there were fewer steps than asked for."""
    if recorded.steps:
        return f"{recorded.steps} of the {recorded.asked} steps asked for were recorded: the program had no more"
    ends = f"an outermost call of {recorded.module} begins each" if recorded.module else "step() ends each"
    return f"no step was recorded: step {recorded.wait + 1} would have been the first, and did not end ({ends})"


def _write(profiler: TorchProfile, folder: Path) -> Path:
    with TemporaryDirectory(dir=folder, prefix=".stepscope-") as hidden:
        plain, packed = Path(hidden) / "plain", Path(hidden) / "packed"
        profiler.export_chrome_trace(str(plain))
        if not _is_whole(plain):  # torch does not say so, for instance of a full disk
            raise UsageError(f"{folder}: torch could not write the whole trace there; is the disk full?")
        with plain.open("rb") as source, gzip.open(packed, "wb", _COMPRESSION) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        return packed.replace(_free_path(folder))


def _is_whole(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        stream.seek(max(path.stat().st_size - 16, 0))
        return stream.read().rstrip().endswith(b"}")


def _free_path(folder: Path) -> Path:
    """Return a name of no other process, and of no other recording of this one."""
    group, given = _rank_of_group(), _number("RANK")
    rank = given if group is None else group
    stem = f"trace-{os.getpid()}" if rank is None else f"rank{rank}-{os.getpid()}"
    path, count = folder / f"{stem}.json.gz", 1
    while path.exists():
        count += 1
        path = folder / f"{stem}-{count}.json.gz"
    return path


def _rank_of_group() -> int | None:
    import torch.distributed as dist  # noqa: PLC0415 -- as above

    return int(dist.get_rank()) if dist.is_available() and dist.is_initialized() else None


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder, prefix=".stepscope-"):
            pass
    except OSError as error:
        raise _cannot_be_written(folder, error) from error


def _cannot_be_written(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"{folder}: cannot be written ({error.strerror})")
