"""Rules about multiplications on recorded traces: quiet on healthy ones, and true where they speak."""

from __future__ import annotations

import gzip
import json
from math import prod
from pathlib import Path
from statistics import median

import pytest

from stepscope import diagnose
from tests.answers import finding
from tests.test_lab_traces import WAYS, diagnosis

TRACES = Path(__file__).parents[2] / "shared/traces"
RULES = {"gemm-below-roofline", "low-precision-slower"}
SGLANG = "sglang-h200/flashinfer-fp8-graph.trace.json.gz"
CAPTURE = "sglang-h200/flashinfer-fp8-graph-capture.trace.json.gz"

real = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside the repository")


@real
def test_the_experts_of_a_single_token_read_at_a_third_of_the_rate() -> None:
    """SGLang's default tile for one token on an H200: 128 blocks on 132 multiprocessors read w13 at 1.2 TB/s.

    benchmarks/results/moe-tiles-h200.md has what other tiles take: 23.8 µs where this takes 51.
    """
    model = str(TRACES / "sglang-h200/model-config.json")
    diagnosis = diagnose([TRACES / SGLANG], capture_trace=TRACES / CAPTURE, model=model, tp=1, context=1024)
    found = finding(diagnosis, "gemm-below-roofline")
    assert (found.severity, found.confidence) == ("minor", "medium")
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
