"""The document's schema is valid, agrees with the contract, and holds for what a diagnosis writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest
from tests.kineto import Kineto
from tests.samples_of_trouble import pool_cast

from stepscope import diagnose
from stepscope.document import json_schema

if TYPE_CHECKING:
    from pathlib import Path

CONTRACT = {
    "": "schema_version tool traces model hardware steps breakdown findings ruled_out could_not_check",
    "TraceInfo": "path bytes events rank device complete attribution warnings",
    "Attribution": "with_launch with_op joined join_method outside_steps_us unclassified",
    "Warning_": "code message count",
    "StepSummary": "trace phase count steady batch_size tokens duration_us gpu_span_us gpu_busy_us gpu_idle_us"
    " kernels_per_step unprofiled_duration_us",
    "ClassTime": "trace phase kernel_class time_us_per_step share_of_step calls_per_step",
    "Finding": "rule trace phase severity confidence title time_us_per_step share_of_step evidence what_if control fix",
    "Evidence": "op kernel calls_per_step us_per_call input_shape source_dtype target_dtype bytes_per_call"
    " bytes_per_step achieved_gb_per_s bandwidth_fraction bandwidth_fraction_measured floor_us_per_step tensor"
    " live_fraction groups frames statement statement_at",
    "Group": "kernel tensor shape calls_per_step time_us_per_step",
    "Frame": "file line function",
    "WhatIf": "step_us gpu_span_us unprofiled_step_us gain_fraction gain_fraction_others_fixed hidden_by assumption",
    "Range": "low expected high",
    "Spread": "min median max",
    "Fix": "what kind where needs expected_step_us",
    "RuledOut": "hypothesis time_us_per_step share_of_step reason",
    "CouldNotCheck": "rule missing how_to_capture",
    "Model": "name source layers",
    "Hardware": "name memory_gb_per_s source",
}


def definition(name: str) -> dict[str, Any]:
    definitions: dict[str, dict[str, Any]] = json_schema()["$defs"]
    return definitions[name or "Diagnosis"]


def written(trace: Kineto, folder: Path, **options: Any) -> dict[str, Any]:
    """Return the document as a reader of the JSON sees it."""
    path = trace.save(folder / "trace.json.gz")
    document: dict[str, Any] = json.loads(msgspec.json.encode(diagnose([path], **options)))
    return document


def gpu_only() -> Kineto:
    trace = Kineto(device=None)
    trace.kernel("k", 1, 5, grid=None)
    return trace


def cpu_only() -> Kineto:
    trace = Kineto(device=None)
    trace.op("aten::add", 1, 5)
    return trace


TRACES = {
    "a finding": pool_cast(),
    "no finding": pool_cast(with_cast=False),
    "one step": pool_cast(steps=1),
    "the GPU alone": gpu_only(),
    "the CPU alone": cpu_only(),
}


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("options", [{}, {"model": "glm-5", "tp": 8, "context": 1024, "gpu": "h200"}], ids=["", "told"])
@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_what_is_written_follows_the_schema(trace: Kineto, options: dict[str, Any], tmp_path: Path) -> None:
    jsonschema.Draft202012Validator(json_schema()).validate(written(trace, tmp_path, **options))


@pytest.mark.parametrize("name", CONTRACT)
def test_every_field_of_the_contract_is_declared(name: str) -> None:
    assert set(CONTRACT[name].split()) <= set(definition(name)["properties"])


def fields_everywhere(document: Any, path: str = "") -> set[str]:
    if isinstance(document, list):
        return set().union(*(fields_everywhere(item, path) for item in document))
    if isinstance(document, dict):
        inner = (fields_everywhere(value, f"{path}.{key}") for key, value in document.items())
        return {f"{path}.{key}" for key in document}.union(*inner)
    return set()


def test_every_field_is_written_also_where_it_is_null(tmp_path: Path) -> None:
    found = fields_everywhere(written(pool_cast(), tmp_path))
    places = {
        "": "",
        "TraceInfo": ".traces",
        "Attribution": ".traces.attribution",
        "StepSummary": ".steps",
        "Spread": ".steps.duration_us",
        "ClassTime": ".breakdown",
        "Finding": ".findings",
        "Evidence": ".findings.evidence",
        "Group": ".findings.evidence.groups",
        "Frame": ".findings.evidence.frames",
        "WhatIf": ".findings.what_if",
        "Range": ".findings.what_if.step_us",
        "Fix": ".findings.fix",
        "RuledOut": ".ruled_out",
    }
    for name, place in places.items():
        missing = {f"{place}.{field}" for field in CONTRACT[name].split()} - found
        assert not missing


def test_what_is_not_known_is_null(tmp_path: Path) -> None:
    document = written(gpu_only(), tmp_path)
    trace = document["traces"][0]
    assert (document["model"], document["hardware"], trace["rank"], trace["device"]) == (None, None, None, None)
    assert trace["attribution"]["join_method"] is None
    assert document["steps"][0]["batch_size"] is None
    assert document["steps"][0]["unprofiled_duration_us"] is None


def test_no_gpu_work_gives_no_step_and_no_share(tmp_path: Path) -> None:
    document = written(cpu_only(), tmp_path)
    attribution = document["traces"][0]["attribution"]
    assert (attribution["with_launch"], attribution["with_op"], attribution["unclassified"]) == (None, None, None)
    assert (document["steps"], document["breakdown"], document["findings"]) == ([], [], [])
    assert document["could_not_check"]
    assert not document["traces"][0]["complete"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema_version",), "1"),
        (("traces", 0, "complete"), None),
        (("traces", 0, "events"), 1.5),
        (("steps", 0, "gpu_busy_us"), None),
        (("findings", 0, "severity"), "terrible"),
        (("findings", 0, "confidence"), None),
        (("findings", 0, "evidence"), None),
    ],
)
def test_the_schema_refuses_what_the_contract_does_not_allow(
    path: tuple[str | int, ...], value: object, tmp_path: Path
) -> None:
    document: Any = written(pool_cast(), tmp_path)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(json_schema()).validate(document)


@pytest.mark.parametrize("field", ["traces", "model", "hardware", "steps", "breakdown", "findings", "ruled_out"])
def test_a_document_without_a_field_is_none(field: str, tmp_path: Path) -> None:
    document = written(pool_cast(), tmp_path)
    del document[field]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(json_schema()).validate(document)


@pytest.mark.parametrize("field", ["severity", "confidence", "phase", "title", "what_if", "control", "fix"])
def test_a_finding_without_a_field_is_none(field: str, tmp_path: Path) -> None:
    document = written(pool_cast(), tmp_path)
    del document["findings"][0][field]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(json_schema()).validate(document)
