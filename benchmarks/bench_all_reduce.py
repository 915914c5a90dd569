"""Time an all-reduce over the GPUs of this machine: ``torchrun --nproc-per-node 2 benchmarks/bench_all_reduce.py``.

BF16, in the replay of a CUDA graph, after a check of the sum. The rate counts each rank's bytes once, and what a ring
sends a rank: 2 (n − 1) / n of them (NCCL's "bus bandwidth").
"""

from __future__ import annotations

import json
import os
import sys

import torch
from torch import distributed

from stepscope.paged_mla.bench.timing import time_calls

SIZES = (16, 12_288, 1 << 20, 1 << 28)  # bytes: the least; a token's hidden state of GLM-5; a small prefill; the rate


def main() -> None:
    """Print one JSON document on rank 0."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    rows = []
    for size in SIZES:
        tensor = torch.full((size // 2,), rank + 1.0, dtype=torch.bfloat16, device="cuda")
        distributed.all_reduce(tensor)
        if not bool((tensor == ranks * (ranks + 1) / 2).all()):
            raise RuntimeError(f"an all-reduce of {size} bytes gave a wrong sum")
        tensor.zero_()  # repeated sums of anything else overflow
        timing = time_calls(lambda _, tensor=tensor: distributed.all_reduce(tensor), 1)  # type: ignore[misc]
        sent = 2 * (ranks - 1) / ranks * size
        rows.append({"bytes": size, "us": timing.us, "spread_us": timing.spread_us, "gb_per_s": sent / timing.us / 1e3})
    if rank == 0:
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        device = torch.cuda.get_device_properties(0).name
        result = {"device": device, "ranks": ranks, "nccl": version, "torch": str(torch.__version__), "rows": rows}
        sys.stdout.write(json.dumps(result, indent=1) + "\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
