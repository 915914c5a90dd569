"""What a rank sends in a collective, by hand for four ranks."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.pipeline.cost import Bound, Ceilings, Work
from stepscope.pipeline.cost.ops import Call, work_of

BF16 = "BFloat16"


@pytest.mark.parametrize(
    ("op", "shapes", "kernel", "work"),
    [
        # 32 B: 2 · 3/4 of it sent, read and written in memory, 3 sums an element
        ("_C_custom_ar::all_reduce", [[], [2, 8], [2, 8]], "", Work(64, 48, sent_bytes=48)),
        ("sglang::inplace_all_reduce", [[2, 8], []], "", Work(64, 48, sent_bytes=48)),
        (
            "record_param_comms",
            [[2, 8], []],
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
            Work(64, 48, sent_bytes=48),
        ),
        # 64 B gathered from four times 16 B
        ("c10d::_allgather_base_", [[32], [8], []], "", Work(80, sent_bytes=48)),
        ("c10d::_reduce_scatter_base_", [[8], [32], []], "", Work(80, sent_bytes=48)),
        ("vllm::all_gather", [[8], []], "", Work(80, sent_bytes=48)),
        ("record_param_comms", [[8]], "ncclKernel_AllGather_RING_LL_Sum_int8_t(x)", Work(80, sent_bytes=48)),
        ("vllm::reduce_scatter", [[32], []], "", Work(80, sent_bytes=48)),
        ("record_param_comms", [[32]], "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", Work(80, sent_bytes=48)),
        # 64 B dealt out, a quarter of them to itself
        ("c10d::alltoall_base_", [[32], [32], []], "", Work(128, sent_bytes=48)),
    ],
)
def test_a_collective_sends_by_its_kind_and_group(op: str, shapes: list[list[int]], kernel: str, work: Work) -> None:
    dtypes = [BF16 if shape else None for shape in shapes]
    assert work_of(Call(op, shapes, dtypes, {}, kernel), ranks=4) == work
    assert work_of(Call(op, shapes, dtypes, {}, kernel)) is None  # how many ranks is not known


@pytest.mark.parametrize(
    ("op", "shapes", "kernel"),
    [
        ("record_param_comms", [[32]], "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)"),
        ("record_param_comms", [[32]], ""),
        ("vllm::all_reduce", [], ""),
        ("vllm::all_gather", [], ""),
        ("vllm::reduce_scatter", [], ""),
        ("c10d::_allgather_base_", [[32]], ""),
    ],
)
def test_what_is_not_told_of_a_collective_costs_nothing_known(op: str, shapes: list[list[int]], kernel: str) -> None:
    assert work_of(Call(op, shapes, [BF16] * len(shapes), {}, kernel), ranks=4) is None


def called(known: Ceilings, work: Work) -> Any:
    return known.call_floor(work)


def test_a_collective_takes_its_exchange_and_its_memory() -> None:
    """48 kB at 8 GB/s take 6 µs; 64 kB of memory at 1000 GB/s take 0.064."""
    sent = Work(64e3, sent_bytes=48e3)
    assert called(Ceilings(1000, {}, link_gb_per_s=8), sent) == (pytest.approx(6), Bound.MEMORY)
    known = Ceilings(1000, {}, link_gb_per_s=8, collective_latency_us=10)
    assert called(known, sent) == (pytest.approx(16), Bound.LATENCY)
    assert called(Ceilings(1000, {}), sent) == (pytest.approx(0.064), Bound.MEMORY)
