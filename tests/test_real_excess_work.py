"""Rules about work that need not be done, on the real traces: one speaks, and it is right."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stepscope import diagnose
from stepscope.errors import NotATraceError

TRACES = Path(__file__).parents[2] / "shared/traces"
RULES = {"unfused-elementwise", "slow-sampling", "lm-head-all-tokens", "padding"}
SGLANG, GLM_5 = {"model": str(TRACES / "sglang-h200/model-config.json"), "tp": 1}, {"model": "glm-5", "tp": 8}
PLAIN_MODEL = "public/TraceLens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
ALL = sorted(path.relative_to(TRACES).as_posix() for path in TRACES.rglob("*.json.gz"))

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside the repository")


@cache
def found_in(trace: str) -> tuple[Any, ...]:
    told: dict[str, Any] = SGLANG if trace.startswith("sglang-h200/") else GLM_5 if trace.startswith("h200-") else {}
    try:
        return tuple(each for each in diagnose([TRACES / trace], **told).findings if each.rule in RULES)
    except NotATraceError:
        return ()


@pytest.mark.parametrize("trace", [trace for trace in ALL if trace != PLAIN_MODEL])
def test_they_keep_quiet(trace: str) -> None:
    assert [each.rule for each in found_in(trace) if each.severity != "info"] == []


def test_a_model_of_plain_operations_has_its_norms_and_rotations_written_out() -> None:
    (found,) = found_in(PLAIN_MODEL)
    assert found.rule == "unfused-elementwise"
    events = json.loads(gzip.decompress((TRACES / PLAIN_MODEL).read_bytes()))["traceEvents"]
    roots = [event for event in events if event.get("cat") == "cpu_op" and event["name"] == "aten::rsqrt"]
    assert len(roots) == 49  # two norms in each of 24 layers, and the last
    # nine kernels a norm but the last, which other work precedes, and thirteen for both rotations of each layer
    assert found.notes[0].startswith("The most frequent, 48 times a step: elementwise + cast + elementwise + reduction")
    assert found.evidence.calls_per_step == pytest.approx(48 * 9 + 24 * 13, rel=0.03)
