"""The facts of the real traces, on the two steps of each that ship in the package."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import pytest

from stepscope import diagnose
from stepscope.cli.demo import CONTEXT, MODEL, TP
from stepscope.document import Confidence, Severity
from tests.answers import finding

if TYPE_CHECKING:
    from stepscope.document import Diagnosis

GRAPH = "graph-cast.json.gz"
EAGER = "eager-cast-stacks.json.gz"
POOL = "KV pool, 495,552 slots × (512 latent + 64 rope)"


@cache
def diagnosed(name: str, *, with_model: bool = True) -> Diagnosis:
    with resources.as_file(resources.files("stepscope") / "samples") as folder:
        if not with_model:
            return diagnose([folder / name])
        return diagnose([folder / name], model=MODEL, tp=TP, context=CONTEXT, sources=[folder])


@pytest.mark.parametrize(("name", "kernels"), [(GRAPH, 2890), (EAGER, 2886)])
def test_a_sample_is_two_whole_decode_steps(name: str, kernels: int) -> None:
    diagnosis = diagnosed(name)
    (steps,) = diagnosis.steps
    assert (steps.phase, steps.count, steps.batch_size) == ("decode", 2, 1)
    assert steps.kernels_per_step == kernels
    assert diagnosis.traces[0].complete
    assert diagnosis.hardware is not None
    assert diagnosis.hardware.name.startswith("NVIDIA H200")


def test_the_samples_are_small() -> None:
    sizes = {name: len((resources.files("stepscope") / "samples" / name).read_bytes()) for name in (GRAPH, EAGER)}
    assert sizes[GRAPH] < 200_000
    assert sizes[EAGER] < 2_000_000


@pytest.mark.parametrize("with_model", [True, False])
def test_the_graphs_cast_is_read_off_its_grid(*, with_model: bool) -> None:
    found = diagnosed(GRAPH, with_model=with_model).findings[0]
    assert found.rule == "kv-pool-cast"
    assert (found.severity, found.confidence) == (Severity.CRITICAL, Confidence.MEDIUM)
    assert found.evidence.calls_per_step == 78.0
    assert found.evidence.us_per_call == pytest.approx(849.41, rel=0.005)
    assert found.evidence.tensor == POOL
    assert found.evidence.bytes_per_call == 856_313_856
    assert any("557,496 blocks" in note for note in found.notes)


def test_the_graphs_step_without_the_cast_takes_a_seventh_of_the_time() -> None:
    diagnosis = diagnosed(GRAPH)
    (steps,) = diagnosis.steps
    what_if = diagnosis.findings[0].what_if
    assert what_if is not None
    assert steps.gpu_span_us.median == pytest.approx(76_750, rel=0.005)
    assert what_if.gpu_span_us.expected == pytest.approx(10_300, rel=0.10)
    assert what_if.gain_fraction > 0.7
    assert what_if.hidden_by == []


def test_the_eager_cast_is_named_with_its_size_and_rate() -> None:
    found = finding(diagnosed(EAGER), "kv-pool-cast")
    evidence = found.evidence
    assert found.confidence is Confidence.HIGH
    assert evidence.calls_per_step == 78.0
    assert evidence.us_per_call == pytest.approx(848.5, rel=0.005)
    assert evidence.input_shape == [495552, 1, 576]
    assert (evidence.source_dtype, evidence.target_dtype) == ("Float8_e4m3fn", "BFloat16")
    assert evidence.bytes_per_call == 856_313_856
    assert evidence.bytes_per_step == pytest.approx(66.8e9, rel=0.001)
    assert evidence.achieved_gb_per_s == pytest.approx(1009, rel=0.005)
    assert evidence.bandwidth_fraction == pytest.approx(0.21, abs=0.002)
    assert evidence.bandwidth_fraction_measured == pytest.approx(0.235, abs=0.002)
    assert evidence.tensor == POOL
    assert evidence.floor_us_per_step == pytest.approx(1024 * 576 * 3 * 78 / 4300e9 * 1e6)


def test_the_eager_cast_has_its_line_of_code() -> None:
    evidence = finding(diagnosed(EAGER), "kv-pool-cast").evidence
    innermost = evidence.frames[-1]
    assert (innermost.file, innermost.line, innermost.function) == ("lab.py", 19, "forward_decode")
    assert evidence.statement == "k_buffer=s.get_key_buffer().to(q.dtype)"
    assert evidence.statement_at == "lab.py:21"


def test_the_eager_cast_and_the_host_hide_each_other() -> None:
    diagnosis = diagnosed(EAGER)
    cast, host = finding(diagnosis, "kv-pool-cast"), finding(diagnosis, "launch-bound")
    assert cast.what_if is not None
    assert host.what_if is not None
    assert cast.what_if.gain_fraction < 0.05
    assert cast.what_if.hidden_by == ["launch-bound"]
    assert host.what_if.hidden_by == ["kv-pool-cast"]
    assert cast.what_if.step_us_others_fixed == host.what_if.step_us_others_fixed
    assert cast.what_if.step_us_others_fixed == pytest.approx(10_500, rel=0.05)
    assert host.confidence is Confidence.LOW
    assert any("profiler itself may be the cause" in note for note in host.notes)


@pytest.mark.parametrize("name", [GRAPH, EAGER])
def test_the_cast_is_neither_expert_weight(name: str) -> None:
    (row,) = (row for row in diagnosed(name).ruled_out if row.hypothesis == "weight dequantisation")
    assert all(number in row.reason for number in ("285.4 M", "805.3 M", "402.7 M"))
