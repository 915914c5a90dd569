"""Time collectives over the GPUs of this machine: ``torchrun --nproc-per-node 2 benchmarks/bench_all_reduce.py``.

An all-reduce, and the all-gather and reduce-scatter that it can be made of, through NCCL; up to 1 MiB also torch's
all-reduce in one shot, in which each rank reads all others' memory. BF16, in the replay of a CUDA graph of twelve in a
row, after a check of the result; and once more under the profiler, for what its kernels take by themselves, without
what lies between two of them. Sizes are those of the whole that is added up, gathered or scattered; the rate counts
what a ring sends a rank: (n − 1)/n of it, and twice that for an all-reduce (NCCL's "bus bandwidth").
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast in the switch is left out: not every machine may use it
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"

import torch
from torch import distributed
from torch.distributed import _symmetric_memory as symmetric
from torch.profiler import ProfilerActivity, profile

from stepscope.paged_mla.bench.timing import time_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KIB, MIB = 1 << 10, 1 << 20
SIZES = (16, 8 * KIB, 12_288, 64 * KIB, MIB, 16 * MIB, 256 * MIB)  # 12,288 B: a token's hidden state in GLM-5
ONE_SHOT_AT_MOST = MIB  # it reads each byte n times, so that larger ones are slow
TIMES = 3  # the whole, to see the spread between runs
PROFILED = 20  # calls


class Collective(NamedTuple):
    """One way of exchanging some bytes."""

    name: str
    call: Callable[[], object]
    right: Callable[[], bool]
    """Whether the output holds what it must, after one call."""
    sent_bytes: float


def through_nccl(size: int, rank: int, ranks: int) -> Iterator[Collective]:
    """Yield what is timed with `size` bytes in all."""
    count, share, total = size // 2, size // 2 // ranks, ranks * (ranks + 1) // 2
    whole = torch.zeros(count, dtype=torch.bfloat16, device="cuda")
    part = torch.zeros(share, dtype=torch.bfloat16, device="cuda")

    def is_sum(tensor: torch.Tensor) -> bool:
        return bool((tensor == total).all())

    def reduced_is_right() -> bool:
        whole.fill_(rank + 1)
        distributed.all_reduce(whole)
        right = is_sum(whole)
        whole.zero_()  # repeated sums of anything else overflow
        return right

    def gathered_is_right() -> bool:
        part.fill_(rank + 1)
        distributed.all_gather_into_tensor(whole, part)
        wanted = torch.arange(1, ranks + 1, device="cuda", dtype=torch.bfloat16).repeat_interleave(share)
        return torch.equal(whole, wanted)

    def scattered_is_right() -> bool:
        whole.fill_(rank + 1)
        distributed.reduce_scatter_tensor(part, whole)
        return is_sum(part)

    sent = (ranks - 1) / ranks * size
    yield Collective("all-reduce", lambda: distributed.all_reduce(whole), reduced_is_right, 2 * sent)
    yield Collective("all-gather", lambda: distributed.all_gather_into_tensor(whole, part), gathered_is_right, sent)
    yield Collective("reduce-scatter", lambda: distributed.reduce_scatter_tensor(part, whole), scattered_is_right, sent)


def in_one_shot(size: int, rank: int, ranks: int) -> Collective:
    """Return torch's all-reduce of `size` bytes through memory that all ranks can read."""
    shared = symmetric.empty(size // 2, dtype=torch.bfloat16, device=torch.device("cuda", rank))
    name = distributed.distributed_c10d._get_default_group().group_name  # noqa: SLF001 -- the op asks for the name
    symmetric.rendezvous(shared, name)

    def call() -> torch.Tensor:
        return torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", name)  # type: ignore[no-any-return]

    def is_right() -> bool:
        shared.fill_(rank + 1)
        return bool((call() == ranks * (ranks + 1) // 2).all())

    return Collective("all-reduce in one shot", call, is_right, 2 * (ranks - 1) / ranks * size)


def kernel_us(collective: Collective) -> float:
    """Return what a collective's kernel takes in a row of them: the least of the ranks' medians."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(PROFILED):
            collective.call()
    graph.replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        distributed.barrier()
        graph.replay()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_bytes())["traceEvents"]
    kernels = sorted((event for event in events if event.get("cat") == "kernel"), key=lambda event: event["ts"])
    own = kernels[-PROFILED + 1 :]  # without the barrier's, and the first, which waits for the other ranks
    medians: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(medians, statistics.median(event["dur"] for event in own))
    return float(round(min(medians), 3))


def timed(collective: Collective, size: int) -> dict[str, Any]:
    """Check a collective, and return its row."""
    if not collective.right():
        raise RuntimeError(f"{collective.name} of {size} bytes gave a wrong result")
    timings = [time_calls(lambda _: collective.call(), 1) for _ in range(TIMES)]
    us = [round(timing.us, 3) for timing in timings]
    row = {
        "collective": collective.name,
        "bytes": size,
        "us": us,
        "spread_us": [round(timing.spread_us, 3) for timing in timings],
        "kernel_us": kernel_us(collective),
        "gb_per_s": round(collective.sent_bytes / statistics.median(us) / 1e3, 3),
    }
    sys.stderr.write(f"{row}\n")
    return row


def main() -> None:
    """Print one JSON document on rank 0."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    rows = [timed(each, size) for size in SIZES for each in through_nccl(size, rank, ranks)]
    rows += [timed(in_one_shot(size, rank, ranks), size) for size in SIZES if size <= ONE_SHOT_AT_MOST]
    if rank == 0:
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        device = torch.cuda.get_device_properties(0).name
        result = {"device": device, "ranks": ranks, "nccl": version, "torch": str(torch.__version__), "rows": rows}
        sys.stdout.write(json.dumps(result, indent=1) + "\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
