from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from stepscope.paged_mla import make_plan, mla_decode
from stepscope.paged_mla.launch_table import PORTABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.paged_mla.builders import Problem

SHAPES = [
    # heads, page size, lengths: odd everything, empty requests, one tile, one token over it, many splits
    (8, 1, [100, 0, 333]),
    (1, 1, [1]),
    (16, 64, [64, 65, 63]),
    (17, 7, [50, 3]),
    (5, 64, [500]),
    (33, 16, [0, 31]),
    (128, 1, [40]),
    (8, 1, [0, 0]),
    (3, 3, [7, 200, 1, 33, 12, 0, 90]),
]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16], ids=["e4m3", "bf16"])
@pytest.mark.parametrize(("heads", "page_size", "lengths"), SHAPES)
def test_agrees_with_the_reference(
    build: Callable[..., Problem], heads: int, page_size: int, lengths: list[int], dtype: torch.dtype
) -> None:
    problem = build(heads=heads, page_size=page_size, lengths=lengths, dtype=dtype)
    problem.check(*problem.run())


def test_pool_read_as_bytes(build: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch) -> None:
    # As on chips that cannot convert e4m3.
    problem = build(heads=4, page_size=3, lengths=[100, 0, 41])
    monkeypatch.setattr("stepscope.paged_mla.decode.form_of", lambda _dtype, _chip: "bytes")
    plan = make_plan(problem.seq_lens, heads=4, page_size=3, block_table=problem.table, launch=PORTABLE[0].launch)
    problem.check(*problem.run(plan=plan))


@pytest.mark.parametrize("cache", ["slots", "pages", "views"])
@pytest.mark.parametrize("pages", ["table", "indptr"])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_every_form_of_pages_and_pool(
    build: Callable[..., Problem], cache: str, pages: str, index_dtype: torch.dtype
) -> None:
    problem = build(heads=4, page_size=5, lengths=[44, 9], index_dtype=index_dtype, length_dtype=index_dtype)
    problem.check(*problem.run(pages=pages, cache=cache))


def test_requests_that_share_pages(build: Callable[..., Problem]) -> None:
    problem = build(heads=4, page_size=4, lengths=[60, 61, 5], shared_pages=True)
    problem.check(*problem.run())


def test_pages_outside_the_pool_are_left_out(build: Callable[..., Problem]) -> None:
    problem = build(heads=4, page_size=1, lengths=[70, 20])
    problem.table[0, 3] = -1
    problem.table[0, 40] = problem.pool.shape[0]
    problem.table[1, 0] = 2**31 - 1
    out, lse = problem.run()
    problem.check(out, lse)


def test_a_request_of_nothing_but_pages_outside_the_pool(build: Callable[..., Problem]) -> None:
    problem = build(heads=2, page_size=1, lengths=[90])
    problem.table.fill_(-1)
    out, lse = problem.run()
    assert out.abs().amax() == 0
    assert torch.isneginf(lse).all()


def test_lengths_beyond_the_pages_end_with_them(build: Callable[..., Problem]) -> None:
    problem = build(heads=2, page_size=4, lengths=[40, 36])
    expected = problem.run()
    problem.seq_lens[0] = 10_000
    for got, wanted in zip(problem.run(), expected, strict=True):
        assert torch.equal(got, wanted)


def test_negative_lengths_count_as_zero(build: Callable[..., Problem]) -> None:
    problem = build(heads=2, page_size=4, lengths=[40, 36])
    problem.seq_lens[1] = -5
    out, lse = problem.run()
    assert out[1].abs().amax() == 0
    assert torch.isneginf(lse[1]).all()


def test_queries_far_apart_in_size(build: Callable[..., Problem]) -> None:
    # Heads of 2^20 and 2^-20 times the usual: beyond fp16 unless scaled. The large one picks a single token.
    problem = build(heads=3, page_size=1, lengths=[80])
    problem.q_nope[:, 0] *= 2.0**20
    problem.q_pe[:, 0] *= 2.0**20
    problem.q_nope[:, 1] *= 2.0**-20
    problem.q_pe[:, 1] *= 2.0**-20
    out, lse = problem.run()
    expected, expected_lse = problem.reference()
    assert (out.double() - expected).norm() / expected.norm() <= 5e-4
    assert ((lse.double() - expected_lse).abs() <= 1e-3 + 1e-6 * expected_lse.abs()).all()


def test_logits_that_keep_rising(build: Callable[..., Problem]) -> None:
    # Every tile raises the running maximum by more than fp16 could hold against the first tile's.
    problem = build(heads=2, page_size=1, lengths=[320])
    rising = torch.linspace(-60, 60, 320, device=problem.pool.device)
    pool = problem.pool.float()
    pool[problem.table[0].long(), 0] = rising
    problem.pool.copy_(pool.to(problem.pool.dtype))
    problem.q_nope[..., 0] = 60.0
    problem.check(*problem.run())


def test_bf16_output_is_the_rounded_result(build: Callable[..., Problem]) -> None:
    problem = build(heads=4, page_size=1, lengths=[150, 1])
    wide, _ = problem.run()
    narrow = torch.full(wide.shape, float("nan"), dtype=torch.bfloat16, device=wide.device)
    problem.run(out=narrow)
    if wide.is_cuda:
        assert torch.equal(narrow, wide.bfloat16())
    else:  # Triton 3.6's interpreter cuts float32 off where a GPU rounds it
        assert ((narrow.float() - wide).abs() <= 2.0**-7 * wide.abs()).all()


def test_outputs_with_strides(build: Callable[..., Problem]) -> None:
    problem = build(heads=3, page_size=1, lengths=[150, 1, 0])
    plain, plain_lse = problem.run()
    out = torch.full((3, 5, 520), 7.0, device=plain.device)
    lse = torch.full((3, 9), 7.0, device=plain.device)
    problem.run(out=out[:, 1:4, :512], lse=lse[:, 2:5])
    assert torch.equal(out[:, 1:4, :512], plain)
    assert torch.equal(lse[:, 2:5], plain_lse)
    assert (out[:, 0] == 7).all()
    assert (out[:, 4] == 7).all()
    assert (out[..., 512:] == 7).all()
    assert (lse[:, :2] == 7).all()
    assert (lse[:, 5:] == 7).all()


def test_the_same_from_run_to_run(build: Callable[..., Problem]) -> None:
    problem = build(heads=8, page_size=1, lengths=[700, 3])
    first, second = problem.run(), problem.run()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_one_plan_for_changing_lengths(build: Callable[..., Problem]) -> None:
    problem = build(heads=4, page_size=1, lengths=[200, 170])
    plan = make_plan(problem.seq_lens, heads=4, page_size=1, block_table=problem.table)
    problem.check(*problem.run(plan=plan))
    problem.seq_lens.copy_(torch.tensor([31, 150]))
    plan.update(problem.seq_lens)
    problem.lengths[:] = [31, 150]
    problem.check(*problem.run(plan=plan))


def test_no_requests(device: torch.device) -> None:
    empty = torch.empty(0, 4, 576, dtype=torch.bfloat16, device=device)
    out, lse = mla_decode(
        empty[..., :512],
        empty[..., 512:],
        torch.zeros(3, 1, 576, device=device).to(torch.float8_e4m3fn),
        block_table=torch.empty(0, 2, dtype=torch.int32, device=device),
        seq_lens=torch.empty(0, dtype=torch.int32, device=device),
        page_size=1,
        sm_scale=1.0,
        return_lse=True,
    )
    assert out.shape == (0, 4, 512)
    assert lse.shape == (0, 4)
