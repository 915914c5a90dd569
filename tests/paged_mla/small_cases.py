"""One small launch of every kernel that this chip has, for a memory checker to watch.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTHONPATH=src:.
    compute-sanitizer --tool memcheck python tests/paged_mla/small_cases.py

Without the caching allocator each tensor is an allocation of its own, so that a step past its end is seen. Inputs and
references are made on the CPU: hardly a kernel but our own runs.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from tests.paged_mla.builders import build_problem

from stepscope.paged_mla import cast, gather_cast, make_plan
from stepscope.paged_mla.launch_table import INTERPRETED, PORTABLE, TABLE, Launch, chip_of

# Odd lengths, an empty request, one token, one over a tile, and one that is split over several workers.
LENGTHS = [333, 0, 1, 65, 1500]
FEW = 3  # workers, so that each goes round its stages several times


def launches(device: torch.device) -> list[tuple[Launch, torch.dtype]]:
    if device.type == "cpu":
        return [(INTERPRETED, torch.float8_e4m3fn)]
    chip = chip_of(torch.cuda.get_device_capability(device))
    rows = [row for row in (*TABLE, *PORTABLE) if row.chip == chip]
    return [(row.launch, torch.bfloat16 if row.form == "bf16" else torch.float8_e4m3fn) for row in rows]


def decode(launch: Launch, dtype: torch.dtype, device: torch.device) -> None:
    # A worker for every tile or so, and few workers; a full block of heads and one besides; pages outside the pool.
    for page_size, pages, heads, few in (
        (1, "table", launch.heads, False),
        (64, "indptr", launch.heads, True),
        (1, "indptr", launch.heads + 3, True),
    ):
        shape = {"heads": heads, "lengths": LENGTHS, "page_size": page_size, "dtype": dtype}
        expected = build_problem(device=torch.device("cpu"), **shape)  # type: ignore[arg-type]
        problem = build_problem(device=device, **shape)  # type: ignore[arg-type]
        for one in (expected, problem):
            if page_size == 1:
                one.table[0, 3], one.indices[3] = -1, -1
                one.table[4, 9], one.indices[sum(LENGTHS[:4]) + 9] = one.pool.shape[0], one.pool.shape[0]
        plan = make_plan(
            problem.seq_lens, heads=heads, page_size=page_size, kv_dtype=dtype, launch=launch, **problem.pages(pages)
        )
        if few:
            plan = replace(plan, starts=plan.starts[: FEW + 1])
            plan.update(problem.seq_lens)
        out, lse = problem.run(pages, plan=plan)
        expected.check(out.cpu(), lse.cpu())
        name = f"{launch.kernel} {launch.heads}x{launch.stages}"
        print(f"{name} {dtype} page {page_size} heads {heads} workers {plan.workers}: agrees", flush=True)  # noqa: T201


def casts(device: torch.device) -> None:
    for source in (torch.float8_e4m3fn, torch.bfloat16):
        pool = torch.randn(77, 1, 576).to(source)
        indices = torch.tensor([3, 76, 0, 3, -1, 77, 8], dtype=torch.int32)
        assert torch.equal(cast(pool.to(device), torch.float16).cpu(), pool.half())
        found = gather_cast(pool.to(device), indices.to(device), torch.float16).cpu()
        wanted = pool[indices.clamp(0, 76).long(), 0].half()
        wanted[4:6] = 0
        assert torch.equal(found, wanted)
        print(f"cast and gather_cast of {source}: agree")  # noqa: T201


def main() -> int:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for launch, dtype in launches(device):
        decode(launch, dtype, device)
    casts(device)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
