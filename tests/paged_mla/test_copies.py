from __future__ import annotations

import pytest
import torch
import triton

from stepscope.paged_mla import cast, gather_cast
from stepscope.paged_mla.kernels.copies import cast_kernel

TARGETS = [torch.bfloat16, torch.float16, torch.float32]


def every_e4m3(device: torch.device) -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", TARGETS)
def test_cast_is_exact_for_every_e4m3_number(device: torch.device, dtype: torch.dtype) -> None:
    numbers = every_e4m3(device)
    if device.type == "cpu":  # Triton 3.6's interpreter reads the two NaNs as 480 and -480
        numbers = numbers[numbers.float().isfinite()]
    assert torch.equal(cast(numbers, dtype).nan_to_num(777.0), numbers.to(dtype).nan_to_num(777.0))


def test_bytes_widen_to_every_e4m3_number(device: torch.device) -> None:
    numbers = every_e4m3(device)
    out = torch.empty(256, dtype=torch.float32, device=device)
    cast_kernel[(triton.cdiv(256, 128),)](numbers.view(torch.uint8), out, 256, FORM="bytes", BLOCK=128)
    assert torch.equal(out.nan_to_num(777.0), numbers.float().nan_to_num(777.0))


def test_cast_of_odd_sizes(device: torch.device) -> None:
    pool = torch.randn(19, 1, 577, device=device).to(torch.float8_e4m3fn)
    assert torch.equal(cast(pool, torch.float32), pool.float())
    assert cast(pool[:0], torch.float32).shape == (0, 1, 577)


@pytest.mark.parametrize("source", [torch.float8_e4m3fn, torch.bfloat16])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_gather_cast(device: torch.device, source: torch.dtype, index_dtype: torch.dtype) -> None:
    pool = torch.randn(40, 1, 576, device=device).to(source)
    indices = torch.tensor([3, 39, 0, 3, 17, 8, 1, 2, 38], dtype=index_dtype, device=device)
    out = gather_cast(pool, indices, torch.float32, 0.25)
    assert torch.equal(out, pool[indices.long(), 0].float() * 0.25)


def test_gather_cast_rounds_once(device: torch.device) -> None:
    pool = torch.randn(8, 576, device=device).to(torch.float8_e4m3fn)
    out = gather_cast(pool, torch.arange(8, device=device), torch.float16, 1 / 3)
    assert torch.equal(out, (pool.float() * (1 / 3)).half())


def test_gather_cast_reads_only_the_indexed_slots(device: torch.device) -> None:
    pool = torch.full((30, 576), float("nan"), device=device)
    pool[[4, 9]] = 1.0
    out = gather_cast(pool.to(torch.float8_e4m3fn), torch.tensor([9, 4], device=device), torch.bfloat16)
    assert (out == 1).all()


def test_gather_cast_of_slots_outside_the_pool(device: torch.device) -> None:
    pool = torch.ones(4, 576, device=device).to(torch.float8_e4m3fn)
    out = gather_cast(pool, torch.tensor([-1, 3, 4, 2**40], device=device), torch.float32)
    assert out.sum(1).tolist() == [0, 576, 0, 0]


def test_gather_cast_of_a_view(device: torch.device) -> None:
    pool = torch.randn(10, 576, device=device).to(torch.float8_e4m3fn)
    indices = torch.tensor([9, 1], device=device)
    assert torch.equal(gather_cast(pool[:, 512:], indices, torch.float32), pool[indices, 512:].float())
    assert gather_cast(pool, indices[:0], torch.float32).shape == (0, 576)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p, _: cast(p.float(), torch.float16), TypeError, "pool has dtype torch.float32; accepted: "),
        (lambda p, _: cast(p, torch.int8), TypeError, "dtype is torch.int8; accepted: torch.bfloat16"),
        (lambda p, _: cast(p.T, torch.float16), ValueError, r"pool has strides \(1, 576\); accepted: a contiguous"),
        (lambda p, i: gather_cast(p, i.float(), torch.float16), TypeError, "indices has dtype torch.float32"),
        (lambda p, i: gather_cast(p, i[None], torch.float16), ValueError, r"indices has shape \[1, 2\]; accepted"),
        (lambda p, i: gather_cast(p[None, None], i, torch.float16), ValueError, r"pool has shape \[1, 1, 4, 576\]"),
        (lambda p, i: gather_cast(p[:, ::2], i, torch.float16), ValueError, "pool has stride 2 in its last axis"),
    ],
)
def test_refusals(device: torch.device, call: object, error: type[Exception], message: str) -> None:
    pool = torch.zeros(4, 576, device=device).to(torch.float8_e4m3fn)
    with pytest.raises(error, match=message):
        call(pool, torch.zeros(2, dtype=torch.int32, device=device))  # type: ignore[operator]
