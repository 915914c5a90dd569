"""Records cases: traces with the profiler, the step's time without it, and the truth beside them."""

from __future__ import annotations

import gc
import gzip
import json
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile

from stepscope.lab import slowdowns, truth
from stepscope.lab.cases import twin_of
from stepscope.lab.engine import Engine
from stepscope.lab.measure import StepTime, time_steps
from stepscope.lab.weights import Weights, make_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.lab.cases import Case
    from stepscope.lab.slowdowns import Mode

STEPS: Mapping[Mode, int] = {"graph": 3, "eager": 4}
"""Those of a recording; the last has no duration, as nothing follows it, and eager ones vary."""
RECORDINGS: Mapping[Mode, int] = {"graph": 1, "eager": 8}
"""Of which the quickest is kept: eager steps go at the host's pace, which on a shared machine varies by a factor of
two, of a slow case as of its twin."""
STACK_STEPS = 2
"""Stacks are most of a trace."""
MODEL = "config.json"
"""The model with the layers that ran, beside the cases."""
GPU_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}


class Recorder:
    """Records cases into folders of one folder; the cases must be of one model, so that they share its weights."""

    def __init__(self, output: Path, device: torch.device, *, dtype: torch.dtype = torch.bfloat16) -> None:
        self.output, self.device, self.dtype = output, device, dtype
        self._weights: Weights | None = None
        self._times: dict[tuple[str, Mode], StepTime] = {}
        self._without: dict[tuple[str, Mode], StepTime] = {}
        self._done: dict[str, dict[str, truth.Recording]] = {}

    def time(self, case: Case) -> None:
        """Measure a slow case in turns with its twin."""
        for mode in self._modes(case):
            twin, twin_mode = self._twin(case, mode)
            slow, healthy = self._engine(case, mode), self._engine(twin, twin_mode)
            for engine in (slow, healthy):
                engine.capture()
            self._times[case.name, mode], without = time_steps([slow, healthy])
            self._without[case.name, mode] = without
            self._times.setdefault((twin.name, twin_mode), without)
            del slow, healthy, engine
            self._collect()

    def record(self, case: Case) -> list[Path]:
        """Write a slow case that was timed, and what its twin lacks; return the folders that changed."""
        changed = []
        for mode in self._modes(case):
            twin, twin_mode = self._twin(case, mode)
            if twin_mode not in self._done.setdefault(twin.name, {}):
                changed.append(self._write(twin, twin_mode, None))
            changed.append(self._write(case, mode, twin))
        return list(dict.fromkeys(changed))

    def _modes(self, case: Case) -> tuple[Mode, ...]:
        return case.modes if self.device.type == "cuda" else ("eager",)

    def _twin(self, case: Case, mode: Mode) -> tuple[Case, Mode]:
        twin, twin_mode = twin_of(case, mode)
        return twin, twin_mode if self.device.type == "cuda" else "eager"

    def _engine(self, case: Case, mode: Mode) -> Engine:
        config = replace(case.config, graph=mode == "graph")
        if self._weights is None:
            self._weights = make_weights(
                config.spec(), config.tp_slice, self.device, self.dtype, sets=config.weight_sets, seed=config.seed
            )
        engine = Engine(config, device=self.device, dtype=self.dtype, weights=self._weights)
        engine.step()  # compiles what is not compiled yet
        engine.reset()
        return engine

    def _write(self, case: Case, mode: Mode, twin: Case | None) -> Path:
        config, folder = case.config, self.output / case.name
        folder.mkdir(parents=True, exist_ok=True)
        model = msgspec.json.format(msgspec.json.encode(config.hf_config()), indent=1)
        (self.output / MODEL).write_bytes(model + b"\n")
        done = self._done.setdefault(case.name, {})
        done[mode] = self._profile(case, mode, folder)
        found = slowdowns.find(config.slowdown) if config.slowdown else None
        told = truth.Truth(
            slowdown=config.slowdown,
            rule=found.rule if found else None,
            twin=twin.name if twin else None,
            model=config.model,
            layers=len(config.spec().layers),
            tp_slice=config.tp_slice,
            contexts=list(config.contexts),
            new_tokens=config.new_tokens,
            pool_slots=config.pool_slots,
            attention=config.attention,
            seed=config.seed,
            machine=truth.this_machine(self.device),
            recordings=done,
        )
        truth.write(told, folder)
        return folder

    def _profile(self, case: Case, mode: Mode, folder: Path) -> truth.Recording:
        engine = self._engine(case, mode)
        traces = {"steps": f"{mode}.json.gz"}
        if engine.parts.graph:
            traces["capture"] = "capture.json.gz"
            profiled(engine.capture, self.device, shapes=True).write(folder / traces["capture"])
        else:
            engine.capture()
        steps = STEPS[mode]
        recorded = self._quickest(engine, steps, RECORDINGS[mode])
        recorded.write(folder / traces["steps"])
        if mode == "eager":
            traces["stacks"] = "stacks.json.gz"
            engine.reset()
            stacks = profiled(partial(_run, engine, STACK_STEPS), self.device, shapes=True, stacks=True)
            stacks.write(folder / traces["stacks"])
        del engine
        self._collect()
        return truth.Recording(
            traces=traces,
            step=self._times[case.name, mode],
            step_without=self._without.get((case.name, mode)),
            kernels_per_step=recorded.work / steps if self.device.type == "cuda" else None,
        )

    def _quickest(self, engine: Engine, steps: int, recordings: int) -> Profile:
        """Record the same steps several times, and return the quickest."""

        def record() -> Profile:
            engine.reset()
            return profiled(partial(_run, engine, steps), self.device)

        return min((record() for _ in range(recordings)), key=lambda recorded: recorded.seconds)

    def _collect(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


class Profile(NamedTuple):
    """A run under the profiler."""

    trace: bytes
    seconds: float
    """On the host's clock, until the GPU was done."""

    @property
    def work(self) -> int:
        """Rows of GPU work."""
        return sum(event.get("cat") in GPU_WORK for event in json.loads(self.trace)["traceEvents"])

    def write(self, path: Path) -> None:
        """Write the trace, compressed."""
        path.write_bytes(gzip.compress(self.trace, 9, mtime=0))


def profiled(run: Callable[[], object], device: torch.device, *, shapes: bool = False, stacks: bool = False) -> Profile:
    """Run under the profiler."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        torch.cuda.synchronize()
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=shapes, with_stack=stacks, with_modules=stacks) as profiler:
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        return Profile(plain.read_bytes(), seconds)


def _run(engine: Engine, count: int) -> None:
    for _ in range(count):
        engine.step()
