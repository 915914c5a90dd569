from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch

from stepscope.paged_mla import make_plan
from stepscope.paged_mla.launch_table import Launch, choose_launch

if TYPE_CHECKING:
    from stepscope.paged_mla.plan import MlaPlan

LAUNCH = Launch("triton", heads=16, tokens=32, warps=4, stages=1, blocks_per_sm=1)
LENGTHS = [
    [1],
    [0],
    [0, 0, 0],
    [32, 33, 64],
    [0, 5, 0, 0, 700, 0],
    [4641, 45118, 1730, 1696],
    list(range(300)),
    [1] * 17,
]


def pieces(plan: MlaPlan) -> list[list[tuple[int, int]]]:
    # By worker, the (request, tile) pairs that it works on, read off the plan as the kernels do.
    starts, lengths = plan.starts[:, :2].tolist(), plan.lengths.tolist()
    found = []
    for (first, tile), (last, end) in pairwise(starts):
        work = []
        for request in range(first, last + 1):
            tiles = -(-lengths[request] // plan.launch.tokens) if request < len(lengths) else 0
            low = tile if request == first else 0
            high = end if request == last else tiles
            work += [(request, t) for t in range(low, high)]
        found.append(work)
    return found


def plan_for(lengths: list[int], device: torch.device) -> MlaPlan:
    table = torch.zeros(len(lengths), max(1, *lengths) if len(lengths) > 1 else max(1, lengths[0]), dtype=torch.int32)
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    return make_plan(seq_lens, heads=8, page_size=1, block_table=table.to(device), launch=LAUNCH)


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda v: f"{len(v)}x{max(v)}")
def test_every_tile_has_one_worker(lengths: list[int], device: torch.device) -> None:
    plan = plan_for(lengths, device)
    work = pieces(plan)
    expected = [(b, t) for b, length in enumerate(lengths) for t in range(-(-length // 32))]
    assert [pair for one in work for pair in one] == expected


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda v: f"{len(v)}x{max(v)}")
def test_no_worker_has_more_than_an_equal_share(lengths: list[int], device: torch.device) -> None:
    plan = plan_for(lengths, device)
    work = pieces(plan)
    total = sum(len(one) for one in work)
    assert max(len(one) for one in work) <= -(-total // plan.workers) if total else True


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda v: f"{len(v)}x{max(v)}")
def test_spans_name_the_workers_of_each_request(lengths: list[int], device: torch.device) -> None:
    plan = plan_for(lengths, device)
    work = pieces(plan)
    for b, (first, last) in enumerate(plan.spans.tolist()):
        workers = [w for w, one in enumerate(work) if any(request == b for request, _ in one)]
        assert list(range(first, last + 1)) == workers


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda v: f"{len(v)}x{max(v)}")
def test_starts_carry_the_length_of_their_request(lengths: list[int], device: torch.device) -> None:
    plan = plan_for(lengths, device)
    for request, _, length, zero in plan.starts.tolist():
        assert length == (lengths[request] if request < len(lengths) else 0)
        assert zero == 0


def test_lengths_are_bounded_by_the_pages(device: torch.device) -> None:
    seq_lens = torch.tensor([9, -3, 5, 4], device=device)
    # Requests 0 to 3 have 2, 1, 0 and 3 entries, but only four indices exist: the last request has one of them.
    indptr = torch.tensor([0, 2, 3, 3, 6], device=device)
    indices = torch.zeros(4, dtype=torch.int64, device=device)
    plan = make_plan(seq_lens, heads=8, page_size=3, kv_indptr=indptr, kv_indices=indices, launch=LAUNCH)
    assert plan.lengths.tolist() == [6, 0, 0, 3]


def test_requests_that_start_before_the_indices_have_no_tokens(device: torch.device) -> None:
    seq_lens = torch.tensor([2, 2], device=device)
    indptr = torch.tensor([-5, 2, 4], device=device)
    indices = torch.zeros(4, dtype=torch.int64, device=device)
    plan = make_plan(seq_lens, heads=8, page_size=1, kv_indptr=indptr, kv_indices=indices, launch=LAUNCH)
    assert plan.lengths.tolist() == [0, 2]


def test_update_refuses_more_pages(device: torch.device) -> None:
    plan = plan_for([3, 4], device)
    table = torch.zeros(2, 5, dtype=torch.int32, device=device)
    message = "block_table has room for 5 pages; accepted: block_table with at most 4, as the plan was made for"
    with pytest.raises(ValueError, match=message):
        plan.update(torch.tensor([1, 2], device=device), block_table=table)


def test_update_refuses_another_batch(device: torch.device) -> None:
    plan = plan_for([3, 4], device)
    with pytest.raises(ValueError, match="seq_lens has 3 requests; accepted: 2, as the plan has"):
        plan.update(torch.tensor([1, 2, 3], device=device))


# On 132 SMs (H200) and 114 (H100 PCIe): one or two blocks an SM; from 33 heads on at most 128; from 65 heads on two
# blocks of heads a worker.
@pytest.mark.parametrize(
    ("heads", "batch", "on_132", "on_114"),
    [(8, 1, 132, 114), (8, 64, 264, 228), (16, 64, 132, 114), (32, 64, 132, 114), (33, 64, 128, 114), (65, 64, 64, 57)],
)
def test_workers_of_hopper_launches(heads: int, batch: int, on_132: int, on_114: int) -> None:
    launch = choose_launch(90, "e4m3", heads, batch)
    assert launch.workers(heads, 132) == on_132
    assert launch.workers(heads, 114) == on_114
