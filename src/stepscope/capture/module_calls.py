"""The steps of a program that marks none: the outermost calls of its largest module.

It runs in the program, which must not notice. So nothing of torch is imported before the program does so, no hook is
registered that torch.compile would see, and what goes wrong here is reported and never raised. What is put in the way
of a call is other code in `nn.Module.__call__`, which stays the same function; it is there between outermost calls
only, so that within one everything runs as it would alone, and stacks show it as torch's own.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from threading import get_ident
from types import FunctionType
from typing import TYPE_CHECKING, Any

from stepscope.capture import torch_exchange, torch_profile
from stepscope.capture.torch_exchange import Wishes
from stepscope.capture.torch_profile import STEPS, WAIT, Recording

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from torch import nn

    from stepscope.capture.torch_exchange import Reporter

_HOME = "torch.nn.modules.module"


def watch() -> None:
    """Count from the moment in which the program loads torch, and report to the command that runs it."""
    reporter = torch_exchange.reporter
    if reporter is not None:
        reporter.begins()
        sys.meta_path.insert(0, _WhenTorchIsLoaded(reporter))


class _WhenTorchIsLoaded:
    """Finds the module that holds `nn.Module` as Python would, and acts once it is executed."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002 -- as importlib calls it
        target: ModuleType | None = None,  # noqa: ARG002 -- the same
    ) -> ModuleSpec | None:
        """Return where a module is; None for all but one, so that others look for it."""
        if name != _HOME:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        loader: Any = spec and spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_and_count(module: ModuleType) -> None:
                execute(module)
                try:
                    ModuleCalls(module.Module.__call__, self._reporter)
                except Exception as error:  # noqa: BLE001 -- the program must load torch all the same
                    self._reporter.gives_up(f"this torch's nn.Module cannot be counted ({error})")

            loader.exec_module = execute_and_count
        return spec


class ModuleCalls:
    """Takes each outermost call of the program's largest module as the beginning of a step.

    The largest has the most numbers in its parameters and buffers; when a larger one is called, counting begins again.
    One without any, such as a loss, is none. Only the thread that called first is counted, because the profiler records
    one thread and those it starts.
    """

    def __init__(self, call: FunctionType, reporter: Reporter) -> None:
        self._call, self._reporter = call, reporter
        self._as_it_was = FunctionType(call.__code__, call.__globals__)
        """The same function, for calls that are not counted while others are."""
        self._counting = _outermost.__code__.replace(
            co_filename=call.__code__.co_filename,
            co_name=call.__code__.co_name,
            co_firstlineno=call.__code__.co_firstlineno,
        )
        self._sizes: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._model: weakref.ref[nn.Module] | None = None
        self._recording: Recording | None = None
        self._thread: int | None = None
        self._process = os.getpid()
        self._is_over = False
        global of_this_process  # noqa: PLW0603 -- there is one `nn.Module`
        of_this_process = self
        torch_profile.substitute = self
        reporter.begins(loaded_torch=True)
        call.__code__ = self._counting

    def enter(self, module: nn.Module) -> FunctionType:
        """Count a call from outside of any other module's, and return what answers it."""
        if self._thread not in {None, get_ident()} or os.getpid() != self._process:
            return self._as_it_was
        self._call.__code__ = self._as_it_was.__code__
        self._begin(module)
        return self._call

    def leave(self, answered_by: FunctionType) -> None:
        """Wait for the next call from outside, after one that `enter` let in."""
        if answered_by is self._call and not self._is_over:
            self._call.__code__ = self._counting

    def withdraw(self) -> None:
        """Leave the program to itself, and take back what was recorded: it marks its own steps."""
        self._leave()
        torch_profile.substitute = None
        recording = self._recording
        if recording is not None:
            recording.discard()
            if recording.path is not None:
                recording.path.unlink(missing_ok=True)
            self._recording = None
            self._reporter.takes_back()

    def _begin(self, module: nn.Module) -> None:
        """Begin a step if it is the model that is called."""
        import torch  # noqa: PLC0415 -- the program has loaded it

        if torch._C._get_tracing_state() is not None:  # noqa: SLF001 -- nn.Module asks it so
            return  # what runs is recorded as a graph, sizes too
        try:
            size = self._size(module)
            model = self._model() if self._model else None
            if module is model and self._recording is not None:
                self._recording.step()
                if self._recording.ended:
                    self._over(self._recording)
            elif size > (0 if model is None else self._size(model)):
                self._begin_anew(module)
        except Exception as error:  # noqa: BLE001 -- the program must not fail of it
            self._give_up(error)

    def _begin_anew(self, module: nn.Module) -> None:
        if self._recording is not None:
            self._recording.discard()
        else:
            atexit.register(self._at_exit)  # after torch's own, so before them at the end
        self._thread, self._model = get_ident(), weakref.ref(module)
        wishes = Wishes(STEPS, WAIT, stacks=False, output=Path()).unless_told()
        self._recording = Recording(wishes, module=type(getattr(module, "_orig_mod", module)).__name__)

    def _size(self, module: nn.Module) -> int:
        size = self._sizes.get(module, 0)
        if not size:  # or not yet: lazy ones come to be in the first call
            tensors = chain(module.parameters(), module.buffers())
            size = sum(tensor.numel() for tensor in tensors if not hasattr(tensor, "materialize"))
            self._sizes[module] = size
        return size

    def _at_exit(self) -> None:
        """End the last step, which no call ends; a program that failed leaves nothing."""
        recording = self._recording
        if recording is None or recording.ended or os.getpid() != self._process:
            return
        try:
            if hasattr(sys, "last_value"):
                recording.discard()
                return
            recording.step()
            recording.end()
            self._over(recording)
        except Exception as error:  # noqa: BLE001 -- as above
            self._give_up(error)

    def _over(self, recording: Recording) -> None:
        self._leave()
        self._reporter.adds(recording.told())

    def _give_up(self, error: Exception) -> None:
        self._leave()
        self._reporter.gives_up(" ".join(f"{type(error).__name__}: {error}".split()))

    def _leave(self) -> None:
        self._is_over = True
        self._call.__code__ = self._as_it_was.__code__


of_this_process: ModuleCalls
"""There once `nn.Module.__call__` is counted."""


def _outermost(self, *args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN202
    """Stand in `nn.Module.__call__`, under its name in stacks.

    It runs with the globals of torch's module, and finds its way by an import.
    """
    from stepscope.capture.module_calls import of_this_process as calls  # noqa: PLC0415 -- as the docstring says

    call = calls.enter(self)
    try:
        return call(self, *args, **kwargs)
    finally:
        calls.leave(call)
