"""Ranks of one model, each a process with a device of its own: together, and with one late at every all-reduce."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from stepscope.lab import truth
from stepscope.lab.engine import Engine
from stepscope.lab.measure import StepTime, time_steps
from stepscope.lab.record import MODEL, profiled
from stepscope.lab.weights import make_weights
from stepscope.paged_mla.bench.timing import time_calls

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.lab.config import LabConfig
    from stepscope.lab.weights import Weights

DELAY_US = 200
"""What the late rank waits before each all-reduce: many times what the all-reduce itself takes."""
STEPS = 10
"""More than of one rank, since ranks that wait for each other vary more."""
FILE = "ranks.json"


class RanksRecording(msgspec.Struct, frozen=True, kw_only=True):
    """One way of running the ranks: lists have a value for each rank, in their order."""

    traces: dict[str, list[str]]
    """Files by what they hold: `steps`, `capture` (warm-up and capture of the graph)."""
    steps: list[StepTime]
    """Without the profiler."""
    steps_without: list[StepTime] | None
    """With no rank late, in turns with the others; None: these are that."""


class RanksTruth(msgspec.Struct, frozen=True, kw_only=True):
    """What is true about the traces in the folders beside it."""

    late_rank: int | None
    delay_us: int
    """Before each all-reduce of the late rank, on its device."""
    twin: str | None
    """Folder of the same ranks with none late."""
    backend: str
    ranks: int
    all_reduces_per_step: int
    all_reduce_bytes: int
    all_reduce_us: float | None
    """What one of that size takes by itself, in a graph and without the profiler; None: no GPU."""
    model: str
    layers: int
    tp_slice: int
    contexts: list[int]
    pool_slots: int
    attention: str
    seed: int
    machine: truth.Machine
    recordings: dict[str, RanksRecording]
    """By mode: `graph`, `eager`. Each step trace begins with a barrier outside the steps.

    In a graph the delay alone decides who is late. Eager ranks also wait for the slower host, by more than the delay.
    """


@dataclass(frozen=True, slots=True)
class _Group:
    config: LabConfig
    ranks: int
    late: int
    meeting: str
    """The file through which the ranks find each other."""
    output: str


def record_ranks(config: LabConfig, output: Path, *, ranks: int = 2, late: int = 1) -> list[Path]:
    """Write the traces of ranks of which one is late, those of its healthy twin, and the truth about both.

    NCCL on GPUs, as graph and eager; gloo without, eager. The ranks are those that the model is split over.

    Args:
        config: what runs; its `tp_slice` and `graph` are not looked at.
        output: where the two folders go.
        ranks: processes.
        late: the one that is late.

    Returns:
        The folders.
    """
    config = replace(config, tp_slice=ranks)
    output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        group = _Group(config, ranks, late, str(Path(folder) / "meeting"), str(output))
        spawn(_rank, (group,), nprocs=ranks)  # type: ignore[no-untyped-call]
    return [output / _name(config, each) for each in (late, None)]


def _name(config: LabConfig, late: int | None) -> str:
    what = "healthy" if late is None else f"late{late}"
    return f"ranks-{what}-{len(config.contexts)}x{max(config.contexts)}-pool{config.pool_slots}"


def _rank(rank: int, group: _Group) -> None:
    on_gpu = torch.cuda.device_count() >= group.ranks
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        f"file://{group.meeting}",
        rank=rank,
        world_size=group.ranks,
        device_id=device if on_gpu else None,
    )
    try:
        _record(rank, group, device)
        gc.collect()  # graphs hold the communicator, which would wait for them for ever
    finally:
        dist.destroy_process_group()


def _record(rank: int, group: _Group, device: torch.device) -> None:
    spec = group.config.spec()
    weights = make_weights(spec, group.ranks, device, torch.bfloat16, seed=group.config.seed)
    message = torch.zeros(len(group.config.contexts), spec.hidden_size, device=device, dtype=torch.bfloat16)
    on_gpu = device.type == "cuda"
    alone_us = round(time_calls(lambda _: dist.all_reduce(message), 1).us, 2) if on_gpu else None
    recordings: dict[int | None, dict[str, RanksRecording]] = {group.late: {}, None: {}}
    for mode in ("graph", "eager") if on_gpu else ("eager",):
        for late, recording in _mode(rank, group, mode, weights).items():
            recordings[late][mode] = recording
        gc.collect()
    if rank > 0:
        return
    config = group.config
    for late, recorded in recordings.items():
        told = RanksTruth(
            late_rank=late,
            delay_us=0 if late is None else DELAY_US,
            twin=None if late is None else _name(config, None),
            backend=dist.get_backend(),
            ranks=group.ranks,
            all_reduces_per_step=2 * len(spec.layers),
            all_reduce_bytes=message.nbytes,
            all_reduce_us=alone_us,
            model=config.model,
            layers=len(spec.layers),
            tp_slice=config.tp_slice,
            contexts=list(config.contexts),
            pool_slots=config.pool_slots,
            attention=config.attention,
            seed=config.seed,
            machine=truth.this_machine(device),
            recordings=recorded,
        )
        folder = Path(group.output) / _name(config, late)
        for file, value in ((FILE, told), (MODEL, config.hf_config())):
            (folder / file).write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")


def _mode(rank: int, group: _Group, mode: str, weights: Weights) -> dict[int | None, RanksRecording]:
    """Time both engines in turns, then record one after the other; all ranks get the same answer."""
    device = weights.outside["embedding"].device
    config = replace(group.config, graph=mode == "graph")
    reduces: dict[int | None, Callable[[torch.Tensor], torch.Tensor]] = {
        group.late: _late_reduce(device) if rank == group.late else _reduce,
        None: _reduce,
    }
    engines = {late: Engine(config, device=device, weights=weights, reduce=each) for late, each in reduces.items()}
    traces: dict[int | None, dict[str, list[str]]] = {late: {} for late in engines}

    def write(late: int | None, kind: str, run: Callable[[], object], *, shapes: bool) -> None:
        own = "capture" if kind == "capture" else mode
        files = [f"{own}/rank{each}.json.gz" for each in range(group.ranks)]
        path = Path(group.output) / _name(config, late) / files[rank]
        path.parent.mkdir(parents=True, exist_ok=True)
        profiled(run, device, shapes=shapes).write(path)
        traces[late][kind] = files

    for late, engine in engines.items():
        engine.step()
        engine.reset()
        if engine.parts.graph:
            write(late, "capture", engine.capture, shapes=True)
        else:
            engine.capture()
    own_times = time_steps(list(engines.values()))
    times: list[list[StepTime] | None] = [None] * group.ranks
    dist.all_gather_object(times, own_times)
    slow, healthy = ([each[i] for each in times if each is not None] for i in range(2))
    for late, engine in engines.items():
        write(late, "steps", partial(_run, engine), shapes=mode == "eager")
    return {
        group.late: RanksRecording(traces=traces[group.late], steps=slow, steps_without=healthy),
        None: RanksRecording(traces=traces[None], steps=healthy, steps_without=None),
    }


def _run(engine: Engine) -> None:
    dist.barrier()  # the ranks' profilers do not start at the same time
    for _ in range(STEPS):
        engine.step()


def _reduce(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return x


def _late_reduce(device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    cycles = round(_cycles_per_us(device) * DELAY_US) if device.type == "cuda" else 0

    def reduce(x: torch.Tensor) -> torch.Tensor:
        if cycles:
            _keep_busy(cycles)
        else:
            time.sleep(DELAY_US / 1e6)
        return _reduce(x)

    return reduce


def _cycles_per_us(device: torch.device) -> float:
    """Measure how fast the GPU's clock runs under this load."""
    cycles = 2_000_000
    _keep_busy(cycles)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    _keep_busy(cycles)
    end.record()
    torch.cuda.synchronize(device)
    return cycles / (1e3 * float(start.elapsed_time(end)))


def _keep_busy(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call] # noqa: SLF001 -- torch has no public call for it
