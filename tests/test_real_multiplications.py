"""Rules about multiplications on recorded traces: quiet on healthy ones, and true where they speak."""

from __future__ import annotations

import gzip
import json
from functools import cache
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from stepscope import diagnose
from stepscope.errors import NotATraceError
from tests.test_lab_traces import WAYS, diagnosis

TRACES = Path(__file__).parents[2] / "shared/traces"
RULES = {"gemm-below-roofline", "low-precision-slower"}
SGLANG = "sglang-h200/flashinfer-fp8-graph.trace.json.gz"
CAPTURES = {
    SGLANG: "sglang-h200/flashinfer-fp8-graph-capture.trace.json.gz",
    "h200-decode/graph-cast.json.gz": "h200-decode/eager-cast.json.gz",
    "h200-decode/graph-gather.json.gz": "h200-decode/eager-gather.json.gz",
    "public/TraceLens/inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz": (
        "public/TraceLens/inference/sglang_decode/capture_traces/bs_32_rank0.json.gz"
    ),
    "public/TraceLens/inference/vllm_decode_full/graph_execution.json.gz": (
        "public/TraceLens/inference/vllm_decode_full/graph_capture_rank_0.1773709742341309550.pt.trace.json.gz"
    ),
}
ALL = sorted(path.relative_to(TRACES).as_posix() for path in TRACES.rglob("*.json.gz"))

real = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside the repository")


@cache
def found_in(trace: str, *, joined: bool = False) -> tuple[Any, ...]:
    model = {"sglang-h200": str(TRACES / "sglang-h200/model-config.json"), "h200-decode": "glm-5"}
    told: dict[str, Any] = {}
    if name := model.get(trace.split("/", maxsplit=1)[0]):
        told = {"model": name, "tp": 8 if name == "glm-5" else 1, "context": 1024}
    try:
        found = diagnose([TRACES / trace], capture_trace=TRACES / CAPTURES[trace] if joined else None, **told).findings
    except NotATraceError:
        return ()
    return tuple(each for each in found if each.rule in RULES)


@real
@pytest.mark.parametrize("trace", ALL)
def test_they_keep_quiet(trace: str) -> None:
    assert [each.rule for each in found_in(trace) if each.severity != "info"] == []


@real
@pytest.mark.parametrize("trace", [trace for trace in CAPTURES if trace != SGLANG])
def test_they_keep_quiet_where_a_capture_tells_the_shapes(trace: str) -> None:
    assert [each.rule for each in found_in(trace, joined=True) if each.severity != "info"] == []


@real
def test_the_experts_of_a_single_token_read_at_a_third_of_the_rate() -> None:
    """SGLang's default tile for one token on an H200: 128 blocks on 132 multiprocessors read w13 at 1.2 TB/s.

    benchmarks/results/moe-tiles-h200.md has what other tiles take: 23.8 µs where this takes 51.
    """
    (found,) = found_in(SGLANG, joined=True)
    assert (found.rule, found.severity, found.confidence) == ("gemm-below-roofline", "minor", "medium")
    events = json.loads(gzip.decompress((TRACES / SGLANG).read_bytes()))["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel" and event["name"] == "fused_moe_kernel"]
    both = {blocks: [each["dur"] for each in kernels if prod(each["args"]["grid"]) == blocks] for blocks in (128, 1536)}
    assert len(kernels) == sum(map(len, both.values()))
    assert found.evidence.blocks == 128
    assert found.evidence.multiprocessors == 132
    us = sum(map(median, both.values()))
    assert found.evidence.us_per_call == pytest.approx(us, rel=0.02)
    # eight experts of [512, 6144] and [6144, 256], and a row in and out
    size = 2 * (8 * (512 * 6144 + 6144 * 256) + 2 * 6144)
    assert found.evidence.bytes_per_call == size
    assert found.time_us_per_step == pytest.approx(75 * (us - size / 4.3e6 / 0.8 - 6), rel=0.03)


@pytest.mark.parametrize(("case", "mode", "kind", "joined"), WAYS)
def test_the_laboratory_is_healthy_in_this(
    case: str,
    mode: str,
    kind: str,
    joined: bool,  # noqa: FBT001 -- a parameter of the test
) -> None:
    found = diagnosis(case, mode, kind, joined=joined).findings
    assert RULES.isdisjoint(each.rule for each in found)
