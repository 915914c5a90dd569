"""Rules about work that need not be done, on a real trace: it speaks, and is right."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from stepscope import diagnose
from tests.answers import finding

TRACES = Path(__file__).parents[2] / "shared/traces"
PLAIN_MODEL = "public/TraceLens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside the repository")


def test_a_model_of_plain_operations_has_its_norms_and_rotations_written_out() -> None:
    found = finding(diagnose([TRACES / PLAIN_MODEL]), "unfused-elementwise")
    events = json.loads(gzip.decompress((TRACES / PLAIN_MODEL).read_bytes()))["traceEvents"]
    roots = [event for event in events if event.get("cat") == "cpu_op" and event["name"] == "aten::rsqrt"]
    assert len(roots) == 49  # two norms in each of 24 layers, and the last
    # nine kernels a norm but the last, which other work precedes, and thirteen for both rotations of each layer
    assert found.notes[0].startswith("The most frequent, 48 times a step: elementwise + cast + elementwise + reduction")
    assert found.evidence.calls_per_step == pytest.approx(48 * 9 + 24 * 13, rel=0.03)
