from __future__ import annotations

from typing import Any

import pytest

from stepscope.paged_mla.bench.cases import CASES
from stepscope.paged_mla.bench.measure import without_folders
from stepscope.paged_mla.bench.report import gates_of, markdown_of, rows_of


def test_limits_are_bytes_or_operations_over_their_rate() -> None:
    limits = {(c.heads, c.batch, c.tokens): c.limit_us for c in CASES}
    # 480,000 tokens of 576 bytes at 4.3e12 a second; 2 x 128 x (576 + 512) operations a token at 790e12.
    assert limits[8, 64, 7500] == pytest.approx(64.298, abs=1e-3)
    assert limits[128, 64, 7500] == pytest.approx(169.232, abs=1e-3)


def measured(contender: str, page: int, us: float | None, heads: int = 8) -> dict[str, Any]:
    return {
        "contender": contender,
        "heads": heads,
        "batch": 64,
        "tokens": 7500,
        "page": page,
        "us": us,
        "spread_us": 0.5,
        "rel_err": 1e-3,
        "lse_err": 1e-5,
    }


PEERS = {
    "new": [
        measured("flashinfer-fp8-fa2", 1, 500.0),
        measured("flashinfer-fp8-fa3", 1, 450.0),
        measured("flashinfer-bf16-fa3", 1, 150.0),
        measured("flashmla-bf16", 64, None),
    ],
    "old": [measured("flashinfer-fp8-fa3", 1, 440.0), measured("flashmla-bf16", 64, 140.0)],
}


def test_rows_carry_the_best_backend_and_flashmla_from_pages_of_64() -> None:
    (row,) = rows_of([measured("stepscope", 1, 90.0)], PEERS)
    assert row["us"] == 90.0
    assert row["peers"]["flashinfer-fp8"] == 450.0
    assert row["peers"]["flashinfer-fp8@old"] == 440.0
    assert row["peers"]["flashinfer-bf16"] == 150.0
    assert row["peers"]["flashmla-bf16@old"] == 140.0
    assert "flashmla-bf16" not in row["peers"]


@pytest.mark.parametrize(
    ("us", "fp8", "bf16", "limit"),
    [(90.0, True, True, True), (110.0, True, True, False), (145.0, True, False, False), (445.0, False, False, False)],
)
def test_gates(us: float, fp8: bool, bf16: bool, limit: bool) -> None:  # noqa: FBT001 - a table of outcomes
    (row,) = rows_of([measured("stepscope", 1, us)], PEERS)
    assert gates_of(row) == {
        "faster than FlashInfer FP8": fp8,
        "faster than the best BF16 peer": bf16,
        "at most 100 us": limit,
    }


def test_the_table_says_what_failed() -> None:
    rows = rows_of([measured("stepscope", 1, 120.0)], PEERS)
    table = markdown_of(
        {
            "machine": "one GPU",
            "driver": "1",
            "torch": "2",
            "triton": "3",
            "commit": "abc",
            "peer_versions": {},
            "peer_failures": {"flashmla-bf16 (new)": "ImportError: a symbol"},
            "rows": rows,
            "casts": {"cast_us": 209.0},
            "accuracy": {"8, 1, 1,024": {"rel_err": 1e-4}},
        }
    )
    assert (
        "| 8, 64, 7,500 | 1 | 64.3 | 80 | **120.0** (0.5) | 440.0 | 150.0 | 140.0 | 1.0e-03 | at most 100 us |" in table
    )
    assert "- flashmla-bf16 (new): ImportError: a symbol" in table


def test_failures_carry_no_folders() -> None:
    text = "ImportError: /opt/somewhere/flash_mla/cuda.so: undefined symbol: x/y"
    assert without_folders(text) == "ImportError: cuda.so: undefined symbol: x/y"
