"""sglang-V100#2 as traces: four V100 behind one PCIe switch, whose all-reduces go through NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kineto import Kineto

if TYPE_CHECKING:
    from collections.abc import Sequence

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
V100 = {"id": 0, "name": "Tesla V100-SXM2-32GB"}
TOKEN_US, CALLS, ALL_REDUCE_US, MESSAGE_BYTES, RANKS = 10_500.0, 100, 20.3, 8192, 4


def token_of_slow_all_reduces(
    us: float = ALL_REDUCE_US, *, ranks: int = 1, message: int = MESSAGE_BYTES, device: dict[str, object] | None = None
) -> Sequence[Kineto]:
    """Return traces of so many ranks: five tokens of 10.5 ms, 100 all-reduces of 8 KB in each; other kernels fill.

    After each step the host waits for the token: 5 µs to return, 10 on the host, 6 until the next one starts.
    """
    other_us = (TOKEN_US - 21 - CALLS * ALL_REDUCE_US) / CALLS
    return [_rank(rank, us, other_us, message, device or V100) for rank in range(ranks)]


def _rank(rank: int, us: float, other_us: float, message: int, device: dict[str, object]) -> Kineto:
    trace = Kineto(device=device, distributedInfo={"backend": "nccl", "rank": rank, "world_size": RANKS})
    at = 10.0
    for _ in range(5):
        correlation = trace.launch(at, 50, name="cudaGraphLaunch")
        start = at + 6
        for _ in range(CALLS):
            trace.kernel("volta_h884gemm", start, other_us, correlation=correlation)
            told = {
                "device": 0,
                "stream": 7,
                "correlation": correlation,
                "grid": [1, 1, 1],
                "block": [512, 1, 1],
                "Collective name": "allreduce",
                "In msg nelems": message // 2,
                "Out msg nelems": message // 2,
                "Group size": RANKS,
                "dtype": "Half",
                "Process Group Name": "0",
                "Process Group Ranks": str(list(range(RANKS))),
            }
            trace.span("kernel", ALL_REDUCE, start + other_us, us, pid=0, tid=7, args=told)
            start += other_us + us
        trace.launch(at + 55, start + 5 - (at + 55), name="cudaStreamSynchronize")
        trace.annotation("step[DECODE bs=1]", at - 2, start + 5 - at)
        at = start + 15
    return trace
