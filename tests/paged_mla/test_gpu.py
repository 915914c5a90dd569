"""What only a GPU can show; the other tests here run there too."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch

from stepscope.paged_mla import make_plan
from stepscope.paged_mla.launch_table import PORTABLE, TABLE, Launch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.paged_mla.builders import Problem

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

HOPPER = [row.launch for row in TABLE if row.chip == 90 and row.launch.kernel != "triton"]


@pytest.mark.parametrize("seed", range(20))
def test_fifty_random_cases(build: Callable[..., Problem], seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - reproducible shapes
    for case in range(50):
        longest = draw.choice([1, 70, 400, 3000])
        lengths = [draw.choice([0, draw.randint(0, longest), longest]) for _ in range(draw.randint(1, 12))]
        problem = build(
            heads=draw.choice([1, 2, 5, 8, 9, 16, 17, 24, 32, 33, 64, 65, 128]),
            lengths=lengths,
            page_size=draw.choice([1, 1, 2, 7, 16, 64, 64]),
            dtype=draw.choice([torch.float8_e4m3fn] * 4 + [torch.bfloat16]),
            index_dtype=draw.choice([torch.int32, torch.int64]),
            length_dtype=draw.choice([torch.int32, torch.int64]),
            kv_scale=draw.choice([1.0, 0.5, 3.0]),
            shared_pages=draw.random() < 0.2,
            seed=1000 * seed + case,
        )
        problem.check(*problem.run(draw.choice(["table", "indptr"]), draw.choice(["slots", "pages", "views"])))


@pytest.mark.parametrize("launch", [*HOPPER, PORTABLE[0].launch], ids=lambda v: f"{v.kernel}{v.heads}x{v.stages}")
def test_every_launch_agrees_with_the_reference(build: Callable[..., Problem], launch: Launch) -> None:
    for heads in (1, 8, 20, 64, 100):
        problem = build(heads=heads, page_size=1, lengths=[4641, 0, 1, 45118, 1730, 64])
        plan = make_plan(problem.seq_lens, heads=heads, page_size=1, block_table=problem.table, launch=launch)
        problem.check(*problem.run(plan=plan))


def test_more_requests_than_workers(build: Callable[..., Problem]) -> None:
    problem = build(heads=8, page_size=1, lengths=[(37 * b) % 101 for b in range(700)])
    problem.check(*problem.run())


def test_graph_replay_with_changed_lengths(build: Callable[..., Problem]) -> None:
    problem = build(heads=8, page_size=64, lengths=[4000, 1500, 3000, 64])
    plan = make_plan(problem.seq_lens, heads=8, page_size=64, block_table=problem.table)
    out = torch.empty(4, 8, 512, device="cuda")
    lse = torch.empty(4, 8, device="cuda")
    problem.run(plan=plan, out=out, lse=lse)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.update(problem.seq_lens)
        problem.run(plan=plan, out=out, lse=lse)
    for lengths in ([4000, 1500, 3000, 64], [1, 0, 2999, 63], [0, 0, 0, 0], [3999, 1, 0, 64]):
        problem.seq_lens.copy_(torch.tensor(lengths))
        problem.lengths[:] = lengths
        out.fill_(float("nan"))
        lse.fill_(float("nan"))
        graph.replay()
        problem.check(out, lse)


def test_the_same_bits_from_run_to_run(build: Callable[..., Problem]) -> None:
    for heads in (8, 16, 64):
        problem = build(heads=heads, page_size=1, lengths=[20_000, 300, 7])
        first = problem.run()
        for _ in range(5):
            assert all(torch.equal(a, b) for a, b in zip(first, problem.run(), strict=True))


def test_unaligned_rows_go_to_the_portable_kernel(build: Callable[..., Problem]) -> None:
    problem = build(heads=4, page_size=1, lengths=[100, 5])
    expected = problem.run()
    buffer = torch.zeros(problem.pool.numel() + 1, dtype=torch.uint8, device="cuda")
    moved = buffer[1:].view_as(problem.pool)
    moved.copy_(problem.pool.view(torch.uint8))
    shifted = type(problem)(**{**vars(problem), "pool": moved.view(torch.float8_e4m3fn)})
    shifted.check(*shifted.run())
    assert (shifted.run()[0] - expected[0]).norm() <= 1e-3 * expected[0].norm()


def test_a_plan_for_aligned_rows_refuses_others(build: Callable[..., Problem]) -> None:
    problem = build(heads=4, page_size=1, lengths=[100, 5])
    plan = make_plan(problem.seq_lens, heads=4, page_size=1, block_table=problem.table, launch=HOPPER[0])
    with pytest.raises(ValueError, match="plan is for rows at multiples of 16 bytes"):
        problem.run(plan=plan, out=torch.empty(2, 4, 520, device="cuda")[..., 1:513])


def test_indices_beyond_32_bits_of_bytes(build: Callable[..., Problem]) -> None:
    # A pool of 4.6 GB: byte offsets pass 2^32.
    problem = build(heads=8, page_size=1, lengths=[70])
    slots = 8_000_000
    pool = torch.zeros(slots, 576, dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn)
    where = torch.arange(slots - 70, slots, device="cuda")
    pool.view(torch.uint8)[where] = problem.pool.view(torch.uint8)[problem.table[0].long()]
    far = type(problem)(**{**vars(problem), "pool": pool, "table": where[None].int()})
    assert all(torch.equal(a, b) for a, b in zip(far.run(), problem.run(), strict=True))
