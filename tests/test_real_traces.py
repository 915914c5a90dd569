"""What is known to be true of real traces, number by number; the traces lie beside the repository."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from functools import cache
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stepscope import diagnose, pipeline
from stepscope.document import Confidence, Severity
from stepscope.pipeline.detect.registry import all_rules
from stepscope.report import Format, draw
from tests.answers import finding, rules

if TYPE_CHECKING:
    from stepscope.document import Diagnosis

TRACES = Path(__file__).parents[2] / "shared" / "traces"
LAB = "h200-decode"
SGLANG = "sglang-h200"
PUBLIC = sorted(path.relative_to(TRACES).as_posix() for path in (TRACES / "public").rglob("*.json.gz"))
PUBLIC_TRACES = [path for path in PUBLIC if "/execution_trace/" not in path]

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside the repository")

EAGER_STACKS = f"{LAB}/eager-cast-stacks.json.gz"
EAGER = f"{LAB}/eager-cast.json.gz"
GRAPH = f"{LAB}/graph-cast.json.gz"
SGLANG_GRAPH = f"{SGLANG}/flashinfer-fp8-graph.trace.json.gz"
SGLANG_EAGER = f"{SGLANG}/flashinfer-fp8-eager-stacks.trace.json.gz"
SGLANG_BF16 = f"{SGLANG}/flashinfer-bf16-graph.trace.json.gz"
WITH_CAST = [EAGER_STACKS, EAGER, GRAPH, SGLANG_GRAPH, SGLANG_EAGER]
WITHOUT_CAST = [f"{LAB}/eager-gather.json.gz", f"{LAB}/graph-gather.json.gz", SGLANG_BF16]


@cache
def diagnosed(trace: str, *, with_model: bool = True) -> Diagnosis:
    if not with_model:
        return diagnose([TRACES / trace])
    if trace.startswith(LAB):
        return diagnose([TRACES / trace], model="glm-5", tp=8, context=1024, sources=[TRACES / LAB])
    return diagnose([TRACES / trace], model="glm-5", tp=8)


def test_eager_with_stacks_has_five_decode_steps_of_batch_one() -> None:
    (steps,) = diagnosed(EAGER_STACKS).steps
    assert (steps.phase, steps.count, steps.batch_size) == ("decode", 5, 1)
    assert steps.kernels_per_step == 2886
    assert steps.gpu_busy_us == pytest.approx(75_100, rel=0.01)


def test_eager_with_stacks_doubts_that_it_is_launch_bound_because_of_the_profiler() -> None:
    found = finding(diagnosed(EAGER_STACKS), "launch-bound")
    assert found.confidence is Confidence.LOW
    assert any("stacks" in note and "profiler itself may be the cause" in note for note in found.notes)


def test_eager_with_stacks_names_the_cast_with_its_size_and_rate() -> None:
    found = finding(diagnosed(EAGER_STACKS), "kv-pool-cast")
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
    assert evidence.tensor == "KV pool, 495,552 slots × (512 latent + 64 rope)"


def test_eager_with_stacks_puts_the_floor_beside_the_cast() -> None:
    found = finding(diagnosed(EAGER_STACKS), "kv-pool-cast")
    # 1,024 live tokens × 576 elements × (1 + 2) bytes, 78 times a step, at the measured 4,300 GB/s
    assert found.evidence.floor_us_per_step == pytest.approx(1024 * 576 * 3 * 78 / 4300e9 * 1e6)
    assert found.evidence.live_tokens == 1024
    assert found.evidence.live_fraction == pytest.approx(0.00207, abs=0.00001)
    assert any("0 with a kernel that reads FP8" in note for note in found.notes)


def test_eager_with_stacks_finds_the_line_of_code() -> None:
    evidence = finding(diagnosed(EAGER_STACKS), "kv-pool-cast").evidence
    innermost = evidence.frames[-1]
    assert (innermost.file, innermost.line, innermost.function) == ("lab.py", 19, "forward_decode")
    assert evidence.statement == "k_buffer=s.get_key_buffer().to(q.dtype)"
    lines = (TRACES / LAB / "lab.py").read_text().splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if text.strip() == evidence.statement)
    assert evidence.statement_at == f"lab.py:{line}"


def test_eager_with_stacks_points_the_code_fixes_at_the_line_and_lists_configuration_first() -> None:
    fixes = finding(diagnosed(EAGER_STACKS), "kv-pool-cast").fix
    assert [fix.kind for fix in fixes] == ["configuration", "configuration", "code", "code"]
    assert [fix.where for fix in fixes] == [None, None, "lab.py:21", "lab.py:21"]
    assert "--attention-backend flashmla --page-size 64" in fixes[0].what
    assert "plan()" in fixes[2].what
    assert ".to(" in fixes[3].what


@pytest.mark.parametrize("trace", WITH_CAST)
def test_the_casts_own_kernel_is_said_to_be_slow(trace: str) -> None:
    found = finding(diagnosed(trace), "kv-pool-cast")
    assert any("twofold" in note and "instructions" in note for note in found.notes)


def test_removing_the_cast_alone_hardly_shortens_the_eager_step_with_stacks() -> None:
    what_if = finding(diagnosed(EAGER_STACKS), "kv-pool-cast").what_if
    assert what_if is not None
    assert what_if.gain_fraction < 0.05
    assert what_if.hidden_by == ["launch-bound"]


def test_eager_without_stacks_finds_the_same_cast_without_frames() -> None:
    diagnosis = diagnosed(EAGER)
    evidence = finding(diagnosis, "kv-pool-cast").evidence
    assert evidence.calls_per_step == 78.0
    assert evidence.us_per_call == pytest.approx(850.08, rel=0.005)
    assert evidence.input_shape == [495552, 1, 576]
    assert evidence.bytes_per_call == 856_313_856
    assert (evidence.frames, evidence.statement) == ([], None)
    (unchecked,) = (row for row in diagnosis.could_not_check if "stacks" in row.missing)
    assert unchecked.rule == "kv-pool-cast"
    assert "with_stack=True" in unchecked.how_to_capture


def test_the_eager_casts_gain_is_hidden_by_the_host() -> None:
    diagnosis = diagnosed(EAGER)
    found = finding(diagnosis, "kv-pool-cast")
    assert found.what_if is not None
    assert found.what_if.gain_fraction < 0.05
    assert found.what_if.gain_fraction_others_fixed > 0.7
    assert found.what_if.hidden_by == ["launch-bound"]
    assert found.severity is Severity.CRITICAL
    assert rules(diagnosis)[0] == "kv-pool-cast" or rules(diagnosis)[:2] == ["launch-bound", "kv-pool-cast"]


def test_the_eager_step_without_both_causes_takes_about_ten_and_a_half_ms() -> None:
    diagnosis = diagnosed(EAGER)
    (steps,) = diagnosis.steps
    host = finding(diagnosis, "launch-bound")
    assert host.what_if is not None
    assert host.confidence is Confidence.MEDIUM
    assert host.what_if.hidden_by == ["kv-pool-cast"]
    assert steps.duration_us.median == pytest.approx(90_800, rel=0.005)
    assert host.what_if.step_us.expected == pytest.approx(76_700, rel=0.01)
    assert host.what_if.step_us_others_fixed == pytest.approx(10_500, rel=0.05)


def test_the_eager_steps_ladder_goes_over_the_host_to_the_cast() -> None:
    ladder = diagnosed(EAGER).ladder
    assert [rung.fixed for rung in ladder] == ["launch-bound", "kv-pool-cast"]
    assert [rung.step_us for rung in ladder] == pytest.approx([76_700, 10_500], rel=0.05)
    text = StringIO()
    draw(diagnosed(EAGER), Format.MARKDOWN, text)
    assert "One after another (decode): 90.83 ms, without launch-bound 76." in text.getvalue().replace("\\", "")


def test_the_report_says_what_both_causes_gain_together() -> None:
    text = StringIO()
    draw(diagnosed(EAGER), Format.TERMINAL, text)
    said = " ".join(text.getvalue().split())
    assert re.search(r"alone: no gain; with launch-bound fixed too: 90\.8\d? ms → 10\.\d+ ms", said)


@pytest.mark.parametrize("with_model", [True, False])
def test_the_graphs_cast_is_read_off_its_grid(*, with_model: bool) -> None:
    diagnosis = diagnosed(GRAPH, with_model=with_model)
    (steps,) = diagnosis.steps
    assert (steps.phase, steps.count) == ("decode", 10)
    assert rules(diagnosis)[0] == "kv-pool-cast"
    found = diagnosis.findings[0]
    assert found.confidence is Confidence.MEDIUM
    assert found.evidence.calls_per_step == 78.0
    assert found.evidence.us_per_call == pytest.approx(849.41, rel=0.005)
    assert found.evidence.tensor == "KV pool, 495,552 slots × (512 latent + 64 rope)"
    assert found.evidence.bytes_per_call == 856_313_856
    # 557,496 blocks × 128 threads × 4 elements = 285,437,952 elements = 495,552 × 576
    assert any("557,496 blocks" in note and "285,437,952" in note for note in found.notes)


def test_the_graphs_step_without_the_cast_is_the_one_measured_without_it() -> None:
    diagnosis = diagnosed(GRAPH)
    (steps,) = diagnosis.steps
    what_if = diagnosis.findings[0].what_if
    assert what_if is not None
    assert steps.gpu_span_us.median == pytest.approx(76_750, rel=0.001)
    assert what_if.gpu_span_us.expected == pytest.approx(10_300, rel=0.10)
    assert what_if.hidden_by == []
    (without,) = diagnosed(f"{LAB}/graph-gather.json.gz").steps
    assert without.gpu_span_us.median == pytest.approx(10_300, rel=0.001)


def test_a_real_server_with_graphs() -> None:
    diagnosis = diagnosed(SGLANG_GRAPH)
    (steps,) = diagnosis.steps
    assert (steps.phase, steps.count, steps.batch_size) == ("decode", 5, 1)
    assert steps.duration_us.median == pytest.approx(80_400, rel=0.005)
    assert steps.gpu_busy_us == pytest.approx(79_630, rel=0.005)
    assert rules(diagnosis) == ["kv-pool-cast"]
    found = diagnosis.findings[0]
    assert found.evidence.calls_per_step == 78.0
    assert found.evidence.us_per_call == pytest.approx(873.7, rel=0.005)
    assert found.time_us_per_step == pytest.approx(68_140, rel=0.005)
    assert found.evidence.tensor == "KV pool, 495,553 slots × (512 latent + 64 rope)"
    assert any("557,498 blocks" in note for note in found.notes)


def test_a_real_servers_gain_is_about_what_its_twin_without_the_cast_shows() -> None:
    what_if = diagnosed(SGLANG_GRAPH).findings[0].what_if
    (twin,) = diagnosed(SGLANG_BF16).steps
    assert what_if is not None
    assert twin.duration_us.median == pytest.approx(11_210, rel=0.005)
    assert what_if.step_us.expected == pytest.approx(11_210, rel=0.10)


def test_a_real_server_without_graphs() -> None:
    diagnosis = diagnosed(SGLANG_EAGER)
    (steps,) = diagnosis.steps
    assert (steps.phase, steps.count) == ("decode", 3)
    assert steps.gpu_busy_us == pytest.approx(79_990, rel=0.005)
    found = finding(diagnosis, "kv-pool-cast")
    assert found.what_if is not None
    assert found.evidence.calls_per_step == 78.0
    assert found.evidence.us_per_call == pytest.approx(872.2, rel=0.005)
    assert found.evidence.input_shape == [495553, 1, 576]
    innermost = found.evidence.frames[-1]
    assert innermost.file.endswith("sglang/srt/layers/attention/flashinfer_mla_backend.py")
    assert (innermost.line, innermost.function) == (580, "forward_decode")
    assert found.what_if.gain_fraction < 0.05
    assert found.what_if.hidden_by == ["launch-bound"]
    assert rules(diagnosis) == ["launch-bound", "kv-pool-cast", "gemm-below-roofline"]
    assert finding(diagnosis, "gemm-below-roofline").severity is Severity.INFO  # 0.5% of a step that the host binds


@pytest.mark.parametrize("trace", [SGLANG_GRAPH, SGLANG_EAGER])
def test_live_tokens_that_nothing_tells_are_not_known(trace: str) -> None:
    diagnosis = diagnosed(trace)
    evidence = finding(diagnosis, "kv-pool-cast").evidence
    assert (evidence.live_tokens, evidence.live_fraction, evidence.floor_us_per_step) == (None, None, None)
    assert any("--context" in row.how_to_capture for row in diagnosis.could_not_check)


@pytest.mark.parametrize("trace", WITHOUT_CAST)
def test_healthy_decodes_have_no_cast(trace: str) -> None:
    assert {"kv-pool-cast", "redundant-cast"}.isdisjoint(rules(diagnosed(trace)))
    assert {"kv-pool-cast", "redundant-cast"}.isdisjoint(rules(diagnosed(trace, with_model=False)))


@pytest.mark.parametrize("trace", WITHOUT_CAST[1:])
def test_healthy_graphs_have_no_finding(trace: str) -> None:
    assert rules(diagnosed(trace)) == []


HAVE_A_SUSPECT = {"slow-collective", "rank-skew", "weight-rematerialised", "launch-bound", "slow-sampling"}


@pytest.mark.parametrize("trace", WITH_CAST)
def test_every_suspect_is_ruled_out_or_found(trace: str) -> None:
    diagnosis = diagnosed(trace)
    hypotheses = {row.hypothesis for row in diagnosis.ruled_out}
    assert {"MoE GEMM", "routing", "collectives", "attention", "sampling", "weight dequantisation"} <= hypotheses
    assert ("host launch" in hypotheses) != ("launch-bound" in rules(diagnosis))
    assert all(row.time_us_per_step is not None for row in diagnosis.ruled_out if row.rule is None)
    named = {row.rule for row in diagnosis.ruled_out} | {row.rule for row in diagnosis.could_not_check}
    parts = {
        rule.id for rule in all_rules() if any(rule.id in note for each in diagnosis.findings for note in each.notes)
    }
    judging = {rule.id for rule in all_rules() if "decode" in rule.phases}
    assert judging - named - parts - set(rules(diagnosis)) <= HAVE_A_SUSPECT


@pytest.mark.parametrize("trace", WITH_CAST)
def test_the_cast_is_neither_expert_weight(trace: str) -> None:
    (row,) = (row for row in diagnosed(trace).ruled_out if row.hypothesis == "weight dequantisation")
    assert all(number in row.reason for number in ("285.4 M", "805.3 M", "402.7 M"))


@pytest.mark.parametrize("trace", PUBLIC_TRACES)
@pytest.mark.parametrize("with_model", [True, False])
def test_no_public_trace_has_a_cast_finding(trace: str, *, with_model: bool) -> None:
    diagnosis = diagnosed(trace, with_model=with_model)
    assert {"kv-pool-cast", "redundant-cast"}.isdisjoint(rules(diagnosis))


@pytest.mark.parametrize("with_model", [True, False])
@pytest.mark.parametrize(
    ("folder", "launch_bound"),
    [
        ("TraceLens/h100", ["gaunernst_bert-small-uncased__1016001.json.gz"]),
        ("TraceLens/mi210/gpu_only_trace", []),
        ("TraceLens/inference/vllm_decode_full", []),
        ("TraceLens/inference/sglang_decode", []),
        ("TraceLens/inference/sglang_prefilldecode", []),
        ("TraceLens/torch_compile_triton", []),
    ],
)
def test_only_a_starved_gpu_is_launch_bound(folder: str, launch_bound: list[str], *, with_model: bool) -> None:
    diagnosis = diagnosed(f"public/{folder}", with_model=with_model)
    starved = [found.trace or 0 for found in diagnosis.findings if found.rule == "launch-bound"]
    assert [Path(diagnosis.traces[trace].path).name for trace in starved] == launch_bound
    for trace in PUBLIC_TRACES:
        if trace.startswith(f"public/{folder}/"):
            alone = rules(diagnosed(trace, with_model=with_model))
            assert ("launch-bound" in alone) == (Path(trace).name in launch_bound)


def test_the_public_traces_diagnosed_as_folders_give_the_same_findings() -> None:
    for folder in ("HTA/timeline_analysis", "HTA/trace_filter", "TraceLens", "kineto-tb_plugin"):
        together = [
            (Path(diagnosed(f"public/{folder}").traces[found.trace or 0].path), found.rule)
            for found in diagnosed(f"public/{folder}").findings
        ]
        alone = [
            (TRACES / trace, rule)
            for trace in PUBLIC_TRACES
            if trace.startswith(f"public/{folder}/")
            for rule in rules(diagnosed(trace))
        ]
        assert sorted(together) == sorted(alone)


def test_the_starved_gpu_is_eight_percent_busy() -> None:
    (steps,) = diagnosed("public/TraceLens/h100/gaunernst_bert-small-uncased__1016001.json.gz").steps
    assert steps.gpu_busy_us / steps.duration_us.median == pytest.approx(0.08, abs=0.005)


@pytest.mark.parametrize(
    ("trace", "busy"),
    [
        ("TraceLens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", 0.92),
        ("TraceLens/mi210/gpu_only_trace/gpu_only_trace.json.gz", 0.89),
        ("TraceLens/torch_compile_triton/trace.json.gz", 1.00),
    ],
)
def test_busy_gpus_are_as_busy_as_they_are_known_to_be(trace: str, busy: float) -> None:
    (steps,) = diagnosed(f"public/{trace}").steps
    assert steps.gpu_busy_us / steps.duration_us.median == pytest.approx(busy, abs=0.01)


def test_the_list_of_ops_shows_the_cast_with_its_origin() -> None:
    (row,) = (
        row
        for row in pipeline.ops(TRACES / EAGER_STACKS, name="aten::copy_").to_dicts()
        if row["input_shapes"][0] == [495552, 1, 576]
    )
    assert (row["input_shapes"], row["dtypes"]) == (
        [[495552, 1, 576], [495552, 1, 576], []],
        ["BFloat16", "Float8_e4m3fn", None],
    )
    assert (row["calls"], row["calls_per_step"]) == (5 * 78, 78.0)
    assert row["time_us_per_step"] == pytest.approx(78 * 848.5, rel=0.005)
    assert row["grid"] == [557496, 1, 1]  # blocks of 512 elements: 495,552 × 576 / 512
    assert row["bytes_per_call"] == 495552 * 576 * 3
    assert (row["parents"], row["source"]) == (["aten::to", "aten::_to_copy"], "lab.py:19 forward_decode")


def test_the_op_around_the_cast_has_its_time() -> None:
    row = pipeline.ops(TRACES / EAGER_STACKS, name="aten::to").row(0, named=True)
    assert (row["input_shapes"][0], row["dtypes"][0]) == ([495552, 1, 576], "Float8_e4m3fn")
    assert (row["calls_per_step"], row["parents"]) == (78.0, [])
    assert row["time_us_per_step"] == pytest.approx(78 * 848.5, rel=0.005)


@pytest.mark.parametrize("trace", [EAGER_STACKS, EAGER, GRAPH, SGLANG_GRAPH, SGLANG_EAGER, *WITHOUT_CAST])
def test_the_list_of_ops_has_every_kernel_once(trace: str) -> None:
    listed = pipeline.ops(TRACES / trace)
    sql = "SELECT step, COUNT(*) AS n, SUM(duration_us) AS us FROM kernels WHERE step IS NOT NULL GROUP BY step"
    of_step = pipeline.query(TRACES / trace, sql)
    assert listed["time_us_per_step"].sum() == pytest.approx(of_step["us"].median(), rel=0.01)
    assert listed["calls"].sum() <= pipeline.query(TRACES / trace, "SELECT COUNT(*) AS n FROM kernels").item()


def test_a_graphs_kernels_are_listed_without_op_and_shapes() -> None:
    row = pipeline.ops(TRACES / GRAPH).row(0, named=True)
    assert row["name"] == row["kernel"]
    assert "direct_copy_kernel_cuda" in row["kernel"]
    assert (row["calls"], row["calls_per_step"], row["grid"]) == (780, 78.0, [557496, 1, 1])
    assert (row["input_shapes"], row["dtypes"], row["bytes_per_call"]) == (None, None, None)


def test_sql_counts_what_the_file_holds() -> None:
    events = pipeline.query(TRACES / EAGER_STACKS, "SELECT kind, COUNT(*) AS n FROM events GROUP BY kind")
    kept = Counter(
        event.get("cat") for event in json.loads(gzip.decompress((TRACES / EAGER_STACKS).read_bytes()))["traceEvents"]
    )
    assert dict(events.rows()) == {
        "kernel": kept["kernel"],
        "op": kept["cpu_op"],
        "frame": kept["python_function"],
        "launch": kept["cuda_runtime"] + kept["cuda_driver"],
        "annotation": kept["user_annotation"],
    }


@pytest.mark.parametrize("trace", PUBLIC_TRACES)
def test_ops_of_every_public_trace_can_be_listed(trace: str) -> None:
    listed = pipeline.ops(TRACES / trace)
    assert listed["time_us_per_step"].drop_nulls().is_sorted(descending=True)
    assert pipeline.query(TRACES / trace, "SELECT COUNT(*) AS n FROM events").item() > 0
