from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from stepscope.paged_mla import make_plan, mla_decode

FP8 = torch.float8_e4m3fn


def good(device: torch.device) -> dict[str, Any]:
    return {
        "q_nope": torch.zeros(2, 4, 512, dtype=torch.bfloat16, device=device),
        "q_pe": torch.zeros(2, 4, 64, dtype=torch.bfloat16, device=device),
        "kv_cache": torch.zeros(10, 1, 576, device=device).to(FP8),
        "block_table": torch.zeros(2, 3, dtype=torch.int32, device=device),
        "seq_lens": torch.ones(2, dtype=torch.int32, device=device),
        "page_size": 1,
        "sm_scale": 0.1,
    }


REFUSALS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"q_nope": [1]}, TypeError, "q_nope is a list; a torch.Tensor is accepted"),
    (
        {"q_nope": torch.zeros(2, 4, 512)},
        TypeError,
        "q_nope has dtype torch.float32; accepted: torch.bfloat16",
    ),
    (
        {"q_nope": torch.zeros(2, 4, 500, dtype=torch.bfloat16)},
        ValueError,
        "q_nope has shape [2, 4, 500]; accepted: [B, H, 512]",
    ),
    (
        {"q_nope": lambda device: torch.zeros(2, 4, 1024, dtype=torch.bfloat16, device=device)[..., ::2]},
        ValueError,
        "q_nope has stride 2 in its last axis; accepted: 1",
    ),
    (
        {"q_pe": torch.zeros(2, 5, 64, dtype=torch.bfloat16)},
        ValueError,
        "q_pe has shape [2, 5, 64]; accepted: [2, 4, 64], as q_nope has",
    ),
    (
        {
            "q_nope": torch.zeros(2, 129, 512, dtype=torch.bfloat16),
            "q_pe": torch.zeros(2, 129, 64, dtype=torch.bfloat16),
        },
        ValueError,
        "q_nope has 129 heads; accepted: 1 to 128",
    ),
    (
        {"kv_cache": torch.zeros(10, 1, 576, dtype=torch.float16)},
        TypeError,
        "kv_cache has dtype torch.float16; accepted: torch.float8_e4m3fn, torch.bfloat16",
    ),
    (
        {"kv_cache": torch.zeros(10, 1, 576, dtype=torch.uint8)},
        TypeError,
        "kv_cache has dtype torch.uint8; accepted: its bytes as .view(torch.float8_e4m3fn)",
    ),
    (
        {"kv_cache": torch.zeros(10, 1, 656).to(FP8)},
        ValueError,
        "kv_cache has shape [10, 1, 656]; accepted: [slots, 1, 576], [slots, 576] or [pages, page_size, 576]",
    ),
    (
        {"kv_cache": torch.zeros(10, 4, 576).to(FP8)},
        ValueError,
        "kv_cache has shape [10, 4, 576], which does not fit page_size 1; accepted",
    ),
    ({"kv_cache": torch.zeros(0, 1, 576).to(FP8)}, ValueError, "kv_cache has no slots"),
    (
        {"kv_cache": lambda device: torch.zeros(10, 3, 576, device=device).to(FP8)[:, :2], "page_size": 2},
        ValueError,
        "kv_cache has strides (1728,",
    ),
    (
        {"kv_cache": (torch.zeros(10, 512).to(FP8), torch.zeros(10, 64).bfloat16())},
        TypeError,
        "kv_cache[1] has dtype torch.bfloat16; accepted: torch.float8_e4m3fn, as kv_cache[0] has",
    ),
    (
        {"kv_cache": (torch.zeros(10, 512).to(FP8), torch.zeros(9, 64).to(FP8))},
        ValueError,
        "kv_cache[1] has 9 slots; accepted: 10, as kv_cache[0] has",
    ),
    ({"kv_cache": (torch.zeros(10, 512).to(FP8),)}, ValueError, "kv_cache is a sequence of 1; accepted"),
    ({"block_table": None}, ValueError, "pages were given as nothing; accepted: block_table alone, or"),
    (
        {"kv_indptr": torch.zeros(3, dtype=torch.int32)},
        ValueError,
        "pages were given as block_table, kv_indptr; accepted",
    ),
    (
        {"block_table": torch.zeros(3, 3, dtype=torch.int32)},
        ValueError,
        "block_table has shape [3, 3]; accepted: [2, max_pages]",
    ),
    ({"block_table": torch.zeros(2, 3)}, TypeError, "block_table has dtype torch.float32; accepted: torch.int32"),
    (
        {
            "block_table": None,
            "kv_indptr": torch.zeros(2, dtype=torch.int32),
            "kv_indices": torch.zeros(4, dtype=torch.int32),
        },
        ValueError,
        "kv_indptr has shape [2]; accepted: [3], contiguous",
    ),
    ({"seq_lens": torch.ones(2)}, TypeError, "seq_lens has dtype torch.float32; accepted: torch.int32, torch.int64"),
    ({"seq_lens": torch.ones(2, 1, dtype=torch.int32)}, ValueError, "seq_lens has shape [2, 1]; accepted: [B]"),
    ({"page_size": 0}, ValueError, "page_size is 0; accepted: an int of at least 1"),
    ({"page_size": 1.0}, ValueError, "page_size is 1.0; accepted: an int of at least 1"),
    ({"sm_scale": float("nan")}, ValueError, "sm_scale is nan; accepted: a finite number"),
    ({"kv_scale": float("inf")}, ValueError, "kv_scale is inf; accepted: a finite number"),
    ({"out": torch.zeros(2, 4, 512, dtype=torch.float16)}, TypeError, "out has dtype torch.float16; accepted"),
    ({"out": torch.zeros(2, 4, 511)}, ValueError, "out has shape [2, 4, 511]; accepted: [2, 4, 512]"),
    ({"lse": torch.zeros(2, 4).double()}, TypeError, "lse has dtype torch.float64; accepted: torch.float32"),
    ({"lse": torch.zeros(4, 2)}, ValueError, "lse has shape [4, 2]; accepted: [2, 4]"),
]


@pytest.mark.parametrize(("change", "error", "message"), REFUSALS, ids=[message[:50] for _, _, message in REFUSALS])
def test_refusals(device: torch.device, change: dict[str, Any], error: type[Exception], message: str) -> None:
    def moved(value: Any) -> Any:
        if callable(value):  # views, which a copy to the device would straighten
            return value(device)
        if isinstance(value, tuple):
            return tuple(moved(v) for v in value)
        return value.to(device) if isinstance(value, torch.Tensor) else value

    arguments = good(device) | {name: moved(value) for name, value in change.items()}
    with pytest.raises(error, match=re.escape(message)):
        mla_decode(arguments.pop("q_nope"), arguments.pop("q_pe"), arguments.pop("kv_cache"), **arguments)


def test_a_plan_for_another_shape(device: torch.device) -> None:
    arguments = good(device)
    plan = make_plan(arguments["seq_lens"], heads=5, page_size=1, block_table=arguments["block_table"])
    with pytest.raises(ValueError, match="plan is for 2 requests and 5 heads; accepted: 2 and 4, as q_nope has"):
        mla_decode(arguments.pop("q_nope"), arguments.pop("q_pe"), arguments.pop("kv_cache"), plan=plan, **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"block_table": torch.zeros(2, 2, dtype=torch.int32)},
            "plan is for a block_table of 3 pages of 1 tokens; accepted: at most the 2 of 1 that block_table has",
        ),
        (
            {"kv_cache": torch.zeros(10, 2, 576).to(FP8), "page_size": 2},
            "plan is for a block_table of 3 pages of 1 tokens; accepted: at most the 3 of 2 that block_table has",
        ),
        (
            {
                "block_table": None,
                "kv_indptr": torch.zeros(3, dtype=torch.int32),
                "kv_indices": torch.zeros(9, dtype=torch.int32),
            },
            "plan is for a block_table of 3 pages of 1 tokens; accepted: at most the 9 of 1 that kv_indices has",
        ),
    ],
    ids=["fewer", "larger", "form"],
)
def test_a_plan_for_other_pages(device: torch.device, change: dict[str, Any], message: str) -> None:
    arguments = good(device)
    plan = make_plan(arguments["seq_lens"], heads=4, page_size=1, block_table=arguments["block_table"])
    arguments |= {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in change.items()}
    with pytest.raises(ValueError, match=re.escape(message)):
        mla_decode(arguments.pop("q_nope"), arguments.pop("q_pe"), arguments.pop("kv_cache"), plan=plan, **arguments)


def test_another_device() -> None:
    arguments = good(torch.device("cpu"))
    arguments["kv_cache"] = arguments["kv_cache"].to("meta")
    with pytest.raises(ValueError, match=r"kv_cache is on meta; accepted: |q_nope is on cpu; accepted: a CUDA device"):
        mla_decode(arguments.pop("q_nope"), arguments.pop("q_pe"), arguments.pop("kv_cache"), **arguments)


def test_the_good_arguments_are_good(device: torch.device) -> None:
    arguments = good(device)
    out = mla_decode(arguments.pop("q_nope"), arguments.pop("q_pe"), arguments.pop("kv_cache"), **arguments)
    assert isinstance(out, torch.Tensor)
    assert out.abs().amax() == 0
