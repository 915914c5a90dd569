"""Places, statements, modules and layers in real traces; expected values are worked out from the raw files."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from stepscope import diagnose, pipeline
from stepscope.report import Format, draw
from tests.answers import finding
from tests.published_source import sglang_source

TRACES = Path(__file__).parents[2] / "shared" / "traces"
SGLANG = TRACES / "sglang-h200" / "flashinfer-fp8-eager-stacks.trace.json.gz"
LAB = TRACES / "h200-decode"
RESNET = TRACES / "public/kineto-tb_plugin/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz"
EMPTY_STACKS = TRACES / "public/HTA/rank_unavailable/rank_not_found.json.gz"
QWEN = TRACES / "public/TraceLens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"

BACKEND = "sglang/srt/layers/attention/flashinfer_mla_backend.py"
CAST_GRID = [557498, 1, 1]

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside the repository")


@pytest.fixture(scope="session")
def sglang(request: pytest.FixtureRequest) -> Path:
    assert request.config.cache is not None
    return sglang_source(request.config.cache)


@cache
def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


@cache
def launches_of_casts() -> list[dict[str, Any]]:
    rows = events(SGLANG)
    kernels = [row for row in rows if row.get("cat") == "kernel" and row["args"].get("grid") == CAST_GRID]
    casts = {row["args"]["correlation"] for row in kernels}
    return [row for row in rows if row.get("cat") == "cuda_runtime" and row["args"].get("correlation") in casts]


def around(launch: dict[str, Any], spans: list[dict[str, Any]]) -> list[str]:
    """Return the names of the spans around a launch, outermost first."""
    outer = [
        span
        for span in spans
        if span["tid"] == launch["tid"] and span["ts"] <= launch["ts"] <= span["ts"] + span["dur"]
    ]
    return [span["name"] for span in sorted(outer, key=lambda span: (span["ts"], -span["dur"]))]


@cache
def python_spans() -> list[dict[str, Any]]:
    return [row for row in events(SGLANG) if row.get("cat") == "python_function"]


def test_the_cast_of_the_real_server_is_line_624(sglang: Path) -> None:
    diagnosis = diagnose([SGLANG], model="glm-5", tp=8, sources=[sglang])
    cast = finding(diagnosis, "kv-pool-cast")
    line = (sglang / BACKEND).read_text().splitlines()[624 - 1].strip()
    assert line == "k_buffer = self.token_to_kv_pool.get_key_buffer(layer.layer_id).to(q.dtype)"
    assert (cast.evidence.statement, cast.evidence.statement_at) == (line, f"{BACKEND}:624")
    assert [fix.where for fix in cast.fix if fix.kind == "code"] == [f"{BACKEND}:624"] * 2
    assert not [row for row in diagnosis.could_not_check if "statement" in row.missing]


def test_the_frames_are_all_that_are_around_outermost_first(sglang: Path) -> None:
    evidence = finding(diagnose([SGLANG], model="glm-5", tp=8, sources=[sglang]), "kv-pool-cast").evidence
    functions = re.compile(r"(.+)\((\d+)\): (.+)")
    raw = [
        match.groups()
        for name in around(launches_of_casts()[0], python_spans())
        if (match := functions.fullmatch(name))
    ]
    assert [(frame.file, str(frame.line), frame.function) for frame in evidence.frames] == raw
    assert len(raw) == 31
    internal = {frame.file.split("/")[0] for frame in evidence.frames if not frame.yours}
    assert internal == {"<string>", "multiprocessing", "torch"}
    assert {frame.file.split("/")[0] for frame in evidence.frames if frame.yours} == {"sglang"}


def test_the_casts_are_in_the_layers_that_the_spans_name() -> None:
    modules = [span for span in python_spans() if span["name"].startswith("nn.Module: ")]
    names = [around(launch, modules) for launch in launches_of_casts()]
    layers = Counter(int(name.rpartition("DecoderLayer_")[2]) for _, name, *_ in names)
    assert layers == dict.fromkeys(range(78), 3)
    diagnosis = diagnose([SGLANG], model="glm-5", tp=8)
    evidence = finding(diagnosis, "kv-pool-cast").evidence
    assert evidence.layers == list(range(78))
    assert evidence.modules == [name.removeprefix("nn.Module: ") for name in names[0]]
    assert evidence.modules == [
        "DeepseekV2Model_0",
        "DeepseekV2DecoderLayer_0",
        "DeepseekV2AttentionMLA_0",
        "RadixAttention_0",
    ]
    for report_format in (Format.TERMINAL, Format.MARKDOWN):
        text = StringIO()
        draw(diagnosis, report_format, text)
        said = " ".join(text.getvalue().replace("\\", "").split())
        assert "layers 0–77, such as DeepseekV2Model_0 / DeepseekV2DecoderLayer_0 /" in said


def test_without_its_source_the_place_is_the_backends_function_and_the_missing_file_is_said() -> None:
    diagnosis = diagnose([SGLANG], model="glm-5", tp=8)
    cast = finding(diagnosis, "kv-pool-cast")
    assert (cast.evidence.statement, cast.evidence.statement_at) == (None, None)
    assert [fix.where for fix in cast.fix if fix.kind == "code"] == [f"{BACKEND}:580"] * 2
    (row,) = (row for row in diagnosis.could_not_check if "statement" in row.missing)
    assert row.missing == f"which statement it comes from: {BACKEND} was not found"


def test_another_version_of_the_source_is_noticed(sglang: Path, tmp_path: Path) -> None:
    other = tmp_path / BACKEND
    other.parent.mkdir(parents=True)
    other.write_text("# one line more\n" + (sglang / BACKEND).read_text())
    diagnosis = diagnose([SGLANG], model="glm-5", tp=8, sources=[tmp_path])
    assert finding(diagnosis, "kv-pool-cast").evidence.statement is None
    (row,) = (row for row in diagnosis.could_not_check if "statement" in row.missing)
    assert "no function forward_decode is on line 580" in row.missing


def test_where_the_engine_is_internal_no_function_of_it_is_the_place() -> None:
    diagnosis = diagnose([SGLANG], model="glm-5", tp=8, internal={"torch", "triton", "sglang"})
    assert not any(frame.yours for frame in finding(diagnosis, "kv-pool-cast").evidence.frames)


def test_the_list_of_copies_has_their_places_modules_and_layers() -> None:
    rows = pipeline.ops(SGLANG, name="aten::copy_").to_dicts()
    assert (rows[0]["calls"], rows[0]["source"], rows[0]["module"], rows[0]["layers"]) == (
        *(234, f"{BACKEND}:580 forward_decode", "RadixAttention"),
        list(range(78)),
    )
    # the model's first three layers are dense: its 75 MoE modules are in the others
    (routed,) = (row for row in rows if row["module"] == "TopK")
    assert (routed["calls"], routed["layers"]) == (225, list(range(3, 78)))
    (sampled,) = (row for row in rows if row["module"] == "LogitsProcessor")
    assert sampled["layers"] is None


def test_the_lab_casts_in_every_layer() -> None:
    evidence = finding(diagnose([LAB / "eager-cast-stacks.json.gz"], sources=[LAB]), "kv-pool-cast").evidence
    assert (evidence.modules, evidence.layers) == (["Model_0", "Layer_0", "MLAAttention_0"], list(range(78)))
    assert evidence.statement_at == "lab.py:21"


def test_an_eager_twin_tells_the_layers_of_a_graph() -> None:
    diagnosis = diagnose([LAB / "graph-cast.json.gz"], sources=[LAB], capture_trace=LAB / "eager-cast-stacks.json.gz")
    evidence = finding(diagnosis, "kv-pool-cast").evidence
    assert evidence.modules[-1].startswith("MLAAttention_")
    assert (evidence.layers, evidence.statement_at) == (list(range(78)), "lab.py:21")


def test_every_norm_of_a_transformers_model_is_in_its_layer() -> None:
    rows = pipeline.ops(QWEN, name="aten::rsqrt").to_dicts()
    calls = Counter(len(row["layers"] or []) for row in rows for _ in range(row["calls"]))
    # 24 layers with two norms each, and a last one outside: one place, one row, and the layers of those within
    assert calls == {24: 49}
    assert {row["source"] for row in rows} == {"transformers/models/qwen2/modeling_qwen2.py:218 forward"}
    assert {row["module"] for row in rows} == {"Qwen2RMSNorm"}


def test_stacks_recorded_as_text_name_the_place_of_each_convolution() -> None:
    expected: Counter[str] = Counter()
    for event in events(RESNET):
        if event["name"] != "aten::conv2d" or event.get("ph") != "X":
            continue
        innermost_first = event["args"]["Call stack"].split(";")
        yours = next(frame for frame in innermost_first if "/site-packages/torch/" not in frame)
        file, line, function = re.fullmatch(r"(.+)\((\d+)\): (.+)", yours).groups()  # type: ignore[union-attr]
        expected[f"{file}:{line} {function}"] += 1
    assert len(expected) == 5
    rows = pipeline.ops(RESNET, name="aten::conv2d").to_dicts()
    calls: Counter[str] = Counter()
    for source, shapes, kernels in {(row["source"], str(row["input_shapes"]), row["calls"]) for row in rows}:
        calls[source] += kernels
        assert shapes
    assert calls == expected


def test_empty_stacks_are_none() -> None:
    assert set(pipeline.ops(EMPTY_STACKS, name="*")["source"].to_list()) == {None}
