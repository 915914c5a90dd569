"""Several ranks of one model, each a process with a device of its own; one may arrive late at every all-reduce."""

from __future__ import annotations

import time
from dataclasses import dataclass
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
from stepscope.lab.record import STEPS, profiled

if TYPE_CHECKING:
    from stepscope.lab.config import LabConfig

DELAY_US = 200
"""What the late rank waits before each all-reduce, longer than the all-reduce itself takes."""
FILE = "ranks.json"


class RanksTruth(msgspec.Struct, frozen=True, kw_only=True):
    """What is true about the traces `rank<N>.json.gz` beside it."""

    late_rank: int | None
    delay_us: int
    """Before each all-reduce of the late rank."""
    backend: str
    ranks: int
    all_reduces_per_step: int
    steps: list[StepTime]
    """Each rank's, without the profiler."""
    model: str
    layers: int
    tp_slice: int
    contexts: list[int]
    graph: bool
    machine: truth.Machine


@dataclass(frozen=True, slots=True)
class _Group:
    config: LabConfig
    ranks: int
    late: int | None
    meeting: str
    """The file through which the ranks find each other."""
    output: str


def record_ranks(config: LabConfig, output: Path, *, ranks: int = 2, late: int | None = None) -> None:
    """Write each rank's trace and the truth about them; NCCL on GPUs, gloo without."""
    output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        group = _Group(config, ranks, late, str(Path(folder) / "meeting"), str(output))
        spawn(_rank, (group,), nprocs=ranks)  # type: ignore[no-untyped-call]


def _rank(rank: int, group: _Group) -> None:
    on_gpu = torch.cuda.device_count() >= group.ranks
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    backend = "nccl" if on_gpu else "gloo"
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(backend, f"file://{group.meeting}", rank=rank, world_size=group.ranks)
    try:
        _run(rank, group, device, backend)
    finally:
        dist.destroy_process_group()


def _run(rank: int, group: _Group, device: torch.device, backend: str) -> None:
    cycles = round(_cycles_per_us(device) * DELAY_US) if device.type == "cuda" else 0

    def reduce(x: torch.Tensor) -> torch.Tensor:
        if rank == group.late:
            if device.type == "cuda":
                _keep_busy(cycles)
            else:
                time.sleep(DELAY_US / 1e6)
        dist.all_reduce(x)
        return x

    engine = Engine(group.config, device=device, reduce=reduce)
    engine.step()
    engine.reset()
    engine.capture()
    step = time_steps([engine])[0]
    dist.barrier()
    profiled(Path(group.output) / f"rank{rank}.json.gz", lambda: [engine.step() for _ in range(STEPS)], device)
    steps: list[StepTime | None] = [None] * group.ranks
    dist.all_gather_object(steps, step)
    if rank == 0:
        told = RanksTruth(
            late_rank=group.late,
            delay_us=DELAY_US if group.late is not None else 0,
            backend=backend,
            ranks=group.ranks,
            all_reduces_per_step=2 * len(engine.pool.layers),
            steps=[each for each in steps if each is not None],
            model=group.config.model,
            layers=len(engine.pool.layers),
            tp_slice=group.config.tp_slice,
            contexts=list(group.config.contexts),
            graph=engine.parts.graph,
            machine=truth.this_machine(device),
        )
        encoded = msgspec.json.format(msgspec.json.encode(told), indent=1)
        (Path(group.output) / FILE).write_bytes(encoded + b"\n")


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
