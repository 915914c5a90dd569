"""Decode steps of several ranks in one run: each computes, then all of them exchange what they have, in turns.

A collective of a rank begins when its own work is done and ends on all of them at once: when the last has come, and the
transfer is over. Times are laid out on one true clock; what a rank records is that clock and its offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.kineto import Kineto

if TYPE_CHECKING:
    from collections.abc import Sequence

    Computes = Sequence[Sequence[float]]
    """µs of work before each collective of a step, by rank."""

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
STEP = "step[DECODE bs=1]"
GAP_US = 21.0
"""From the end of one step to the start of the next: 5 until the host knows, 10 on the host, 6 to start."""


class Clock(NamedTuple):
    """How a rank's clock tells the true time."""

    offset: float
    drift: float

    def at(self, true: float) -> float:
        """Return what it shows."""
        return self.offset + true * (1 + self.drift)


def in_lockstep(
    steps: Sequence[Computes],
    *,
    transfer: float = 7.0,
    offsets: Sequence[float] = (),
    drifts: Sequence[float] = (),
    world: int | None = None,
    device: str = "NVIDIA H200",
    kernel: str = ALL_REDUCE,
    told: str | None = None,
) -> list[Kineto]:
    """Return the traces of ranks that replay each step as a graph.

    Args:
        steps: what each rank computes before each collective, step by step.
        transfer: what each collective takes once all have come.
        offsets: of each rank's clock, in µs.
        drifts: by how much each rank's clock is fast, as a fraction.
        world: ranks of the run; None: those at hand.
        device: the GPUs' name.
        kernel: that of the collectives.
        told: what torch calls them; None: it does not tell.
    """
    count = len(steps[0])
    traces = [
        Kineto(
            device={"id": 0, "name": device},
            distributedInfo={"backend": "nccl", "rank": rank, "world_size": world or count},
        )
        for rank in range(count)
    ]
    begin = 1000.0
    for step in steps:
        ends = _ends(begin, step, transfer)
        for rank, trace in enumerate(traces):
            clock = Clock(offsets[rank] if offsets else 0.0, drifts[rank] if drifts else 0.0)
            _record(trace, begin, step[rank], ends, clock)
            for event in trace.events:
                if event["name"] == ALL_REDUCE:
                    event["name"] = kernel
                    event["args"] |= {} if told is None else {"Collective name": told, "Process Group Name": "ep"}
        begin = ends[-1] + GAP_US
    return traces


def step_us(step: Computes, transfer: float = 7.0) -> float:
    """Return how long a step of all ranks takes, from its first work to the next step's."""
    return _ends(0.0, step, transfer)[-1] + GAP_US


def _ends(begin: float, step: Computes, transfer: float) -> list[float]:
    """Return when each collective of a step ends: it is the last rank that all wait for."""
    ends = [begin]
    for work in zip(*step, strict=True):
        ends.append(ends[-1] + max(work) + transfer)
    return ends[1:]


def _record(trace: Kineto, begin: float, work: Sequence[float], ends: Sequence[float], clock: Clock) -> None:
    """Launch the graph, let its kernels run, and wait for them, as a server does that needs the token."""
    correlation = trace.launch(clock.at(begin - 6), 50, name="cudaGraphLaunch")
    trace.launch(clock.at(begin + 49), clock.at(ends[-1] + 5) - clock.at(begin + 49), name="cudaStreamSynchronize")
    trace.annotation(STEP, clock.at(begin - 8), ends[-1] - begin)
    at = begin
    for us, end in zip(work, ends, strict=True):
        for name, start, until in ((GEMM, at, at + us), (ALL_REDUCE, at + us, end)):
            trace.kernel(name, clock.at(start), clock.at(until) - clock.at(start), correlation=correlation)
        at = end
