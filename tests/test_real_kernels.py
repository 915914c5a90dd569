"""Names and efficiencies of kernels in real traces; the expected values are worked out from lab.py's shapes by hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import stepscope

if TYPE_CHECKING:
    from stepscope.document import Diagnosis, KernelTime

TRACES = Path(__file__).parents[2] / "shared" / "traces"
EAGER_GATHER = TRACES / "h200-decode" / "eager-gather.json.gz"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")

GEMMS = {
    "q_a_proj": [[1, 6144], [6144, 2048]],
    "q_b_proj": [[1, 2048], [2048, 2048]],
    "kv_a_proj": [[1, 6144], [6144, 576]],
    "w_kc": [[8, 1, 192], [8, 192, 512]],
    "keys of 1,024 tokens": [[1, 8, 576], [1, 576, 1024]],
    "values of 1,024 tokens": [[1, 8, 1024], [1, 1024, 512]],
    "w_vc": [[8, 1, 512], [8, 512, 256]],
    "o_proj": [[1, 2048], [2048, 6144]],
    "router": [[1, 6144], [6144, 256]],
    "shared_w13": [[1, 6144], [6144, 512]],
    "shared_w2": [[1, 256], [256, 6144]],
}
"""lab.py's products, by what GLM-5 on one of eight ranks calls the second factor."""


@cache
def diagnosed(name: str, capture: Path | None = None) -> Diagnosis:
    return stepscope.diagnose([TRACES / name], model="glm-5", tp=8, capture_trace=capture)


def rows(name: str, capture: Path | None = None) -> list[KernelTime]:
    return diagnosed(name, capture).kernels


@pytest.mark.parametrize(
    ("name", "capture"),
    [("h200-decode/eager-gather.json.gz", None), ("h200-decode/graph-gather.json.gz", EAGER_GATHER)],
)
def test_each_gemm_of_the_laboratory_is_named(name: str, capture: Path | None) -> None:
    named = {row.tensor: row.input_shapes for row in rows(name, capture) if row.op in {"aten::mm", "aten::bmm"}}
    assert {tensor: (shapes or [])[:2] for tensor, shapes in named.items()} == GEMMS


@pytest.mark.parametrize(
    ("name", "capture"),
    [
        ("h200-decode/eager-cast-stacks.json.gz", None),
        ("h200-decode/eager-cast.json.gz", None),
        ("h200-decode/eager-gather.json.gz", None),
        ("h200-decode/graph-gather.json.gz", EAGER_GATHER),
    ],
)
def test_every_listed_kernel_of_the_laboratory_has_an_efficiency(name: str, capture: Path | None) -> None:
    without = [(row.op, row.kernel) for row in rows(name, capture) if row.efficiency is None]
    assert without == []
    assert all(0 < (row.efficiency or 0) < 1 for row in rows(name, capture))


def test_efficiency_is_the_least_time_of_the_op_over_the_time_of_its_kernels() -> None:
    """q_a_proj: (6144 × 2048 + 6144 + 2048) × 2 B at 4.3 TB/s take 5.86 µs; the split-k product's kernels take more."""
    least_us = (6144 * 2048 + 6144 + 2048) * 2 / 4.3e6
    found = [row for row in rows("h200-decode/eager-gather.json.gz") if row.tensor == "q_a_proj"]
    assert [row.calls_per_step for row in found] == [78, 78]
    assert {row.bytes_per_op for row in found} == {25_182_208}
    assert sum(row.floor_us_per_step or 0 for row in found) == pytest.approx(78 * least_us)
    taken = sum(row.time_us_per_step for row in found)
    assert {round(row.efficiency or 0, 6) for row in found} == {round(78 * least_us / taken, 6)}


def test_the_pools_cast_reaches_23_5_percent_of_the_copy_rate() -> None:
    (row,) = (row for row in rows("h200-decode/eager-cast-stacks.json.gz") if row.kernel_class == "cast")
    assert row.efficiency == pytest.approx(0.2347, abs=0.0005)  # 1,009 of 4,300 GB/s
    assert row.avoidable_bytes_per_op == row.bytes_per_op == 856_313_856


def test_fused_experts_of_a_server_are_named_and_compared_with_8_of_64() -> None:
    """SGLang's server has 64 experts of 256 × 6144 on the rank; one token reads 8 of them: 75.5 MB."""
    found = [row for row in rows("sglang-h200/flashinfer-fp8-eager-stacks.trace.json.gz") if "fused_moe" in row.kernel]
    assert len(found) == 2
    assert {row.bytes_per_op for row in found} == {8 * 3 * 256 * 6144 * 2 + 2 * 6144 * 2}


@pytest.mark.parametrize("name", ["flashinfer-fp8-graph", "flashinfer-bf16-graph", "flashinfer-fp8-eager-stacks"])
def test_flashinfers_mla_is_judged_by_the_model(name: str) -> None:
    """1000 rows of 576 in BF16 and 8 heads' queries and results take 0.27 µs, less than an empty kernel's 0.55."""
    diagnosis = stepscope.diagnose(
        [TRACES / "sglang-h200" / f"{name}.trace.json.gz"], model="glm-5", tp=8, context=1000
    )
    (row,) = (row for row in diagnosis.kernels if row.kernel_class == "attention")
    assert row.op is None
    assert row.bytes_per_op == 1000 * 576 * 2 + 8 * (576 + 512) * 2
    assert row.floor_us_per_step == pytest.approx(78 * 0.55)
    assert row.efficiency == pytest.approx(0.55 / 19, rel=0.03)  # each call takes about 19 µs
    assert row.bound == "latency"


def test_a_served_step_is_judged_but_for_norms_that_have_no_op() -> None:
    """FlashInfer's norms launch past the dispatcher: 0.6% of the kernel time."""
    (capture,) = (TRACES / "sglang-h200").glob("*-capture.trace.json.gz")
    diagnosis = stepscope.diagnose(
        [TRACES / "sglang-h200" / "flashinfer-fp8-graph.trace.json.gz"],
        model=str(TRACES / "sglang-h200" / "model-config.json"),
        tp=1,
        context=1000,
        capture_trace=capture,
    )
    without = [row for row in diagnosis.kernels if row.efficiency is None]
    assert [(row.kernel_class, row.op) for row in without] == [("norm", None)]
    judged = sum(row.time_us_per_step for row in diagnosis.kernels) - sum(row.time_us_per_step for row in without)
    assert judged > 0.95 * sum(row.time_us_per_step for row in diagnosis.breakdown)


def test_an_amd_prefill_is_judged_whole() -> None:
    """Qwen3-8B, 15 prompts of 1024: 15 · 1024 · 1025/2 pairs, 32 heads, 256 wide; 1307 TFLOPS. None is left out."""
    found = rows_of_prefill()
    assert [row.op for row in found if row.efficiency is None] == []
    (row,) = (row for row in found if row.kernel_class == "attention")
    assert row.flops_per_op == 2 * (15 * 1024 * 1025 // 2) * 32 * 256
    assert row.floor_us_per_step == pytest.approx(36 * row.flops_per_op / 1307e6)
    assert row.bound == "compute"


def rows_of_prefill() -> list[KernelTime]:
    folder = TRACES / "public" / "TraceLens" / "inference" / "sglang_prefilldecode"
    return stepscope.diagnose([folder], model="qwen3-8b", tp=1).kernels


def test_no_kernel_beats_its_floor() -> None:
    for name in ("eager-gather", "eager-cast", "eager-cast-stacks"):
        assert all(0 < (row.efficiency or 0) <= 1 for row in rows(f"h200-decode/{name}.json.gz"))
    assert all(0 < (row.efficiency or 0) <= 1 for row in rows_of_prefill())
