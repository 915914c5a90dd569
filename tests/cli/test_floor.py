"""`stepscope floor` as its users meet it: the contract's fields, durations, and what it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest
from tests.decode_steps import Work, graphed
from tests.processes import is_one_sentence

from stepscope.document import Floor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

CASE = ("floor", "--model", "glm-5", "--gpu", "rtx-pro-6000", "--tp", "8", "--weights", "nvfp4", "--kv-dtype", "fp8")
CONTRACT = {"floor_us_per_step", "components", "measured_us", "unexplained_us", "tokens_per_s", "assumptions"}


def document(run: Run, *options: str | Path) -> dict[str, Any]:
    code, out, err = run(*CASE, *options, "--format", "json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    jsonschema.Draft202012Validator(msgspec.json.schema(Floor)).validate(found)
    return found


def test_the_fields_of_the_contract(run: Run) -> None:
    found = document(run, "--batch", "1", "--context", "1024", "--measured", "86ms")
    assert found.keys() >= CONTRACT
    assert all(part.keys() >= {"name", "time_us", "bytes", "flops", "bound"} for part in found["components"])
    assert {part["bound"] for part in found["components"]} <= {"memory", "compute", "latency"}
    assert sum(part["time_us"] for part in found["components"]) == pytest.approx(found["floor_us_per_step"])
    assert found["unexplained_us"] == pytest.approx(86_000 - found["floor_us_per_step"])
    assert all(point.keys() == {"batch", "context", "floor_us_per_step", "tokens_per_s"} for point in found["growth"])


@pytest.mark.parametrize("told", ["86", "86ms", "86 ms", "0.086s", "86000us", "86000\u00b5s", "86000\u03bcs"])
def test_a_duration_is_in_ms_unless_it_says_otherwise(told: str, run: Run) -> None:
    assert document(run, "--measured", told)["measured_us"] == pytest.approx(86_000)


def test_without_a_measurement_nothing_is_measured(run: Run) -> None:
    found = document(run)
    assert (found["measured_us"], found["unexplained_us"], found["waterfall"]) == (None, None, [])


def test_traces_of_two_batch_sizes(run: Run, tmp_path: Path) -> None:
    options: list[str | Path] = []
    for batch in (1, 8):
        trace = graphed([[Work("nvjet_a", 7000.0 + batch)]] * 5, annotation=f"step[DECODE bs={batch}]")
        options += ["--trace", trace.save(tmp_path / f"{batch}.json")]
    found = document(run, *options, "--no-cache")
    assert found["amortisation"]["step"]["per_request_us"] == pytest.approx(1)
    assert found["amortisation"]["step"]["residual_us"] is None
    gaps = sum(row["gap_us"] for row in found["waterfall"])
    assert gaps == pytest.approx(found["measured_us"] - found["floor_us_per_step"])


WRONG = {
    "no model": ["floor", "--gpu", "h200"],
    "no GPU": ["floor", "--model", "glm-5"],
    "an unknown model": ["floor", "--model", "gpt-9", "--gpu", "h200"],
    "an unknown GPU": ["floor", "--model", "glm-5", "--gpu", "h999"],
    "an unknown format": [*CASE[:-4], "--weights", "fp3"],
    "no duration": [*CASE, "--measured", "soon"],
    "a negative duration": [*CASE, "--measured=-86ms"],
    "a duration of none": [*CASE, "--measured", "0ms"],
    "a duration beyond a float": [*CASE, "--measured", "9" * 400],
    "a duration and a trace": [*CASE, "--measured", "86ms", "--trace", "t.json"],
    "a missing trace": [*CASE, "--trace", "missing.json"],
    "expert groups that do not divide": [*CASE, "--ep", "3"],
    "attention groups that do not divide": [*CASE, "--dp", "3"],
    "a batch of none": [*CASE, "--batch", "0"],
    "a batch of halves": [*CASE, "--batch", "1.5"],
    "a batch beyond a float": [*CASE, "--batch", "9" * 310],
    "a context beyond a float": [*CASE, "--context", "9" * 310],
    "ranks of many digits": [*CASE[:-6], "--tp", "9" * 5000],
    "a report of its own": [*CASE, "--format", "csv"],
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_usage_exits_with_2(what: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*WRONG[what])
    assert (code, out) == (2, "")
    assert is_one_sentence(err)


def test_what_is_missing_is_the_model_whatever_else_is(run: Run) -> None:
    assert run("floor", "--gpu", "h200")[2] == "stepscope: --model is needed\n"


def test_the_most_that_is_taken_overflows_nothing(run: Run) -> None:
    most = "9" * 12
    for drawn in ("json", "terminal", "markdown"):
        code, _, err = run(*CASE, "--batch", most, "--context", most, "--measured", f"{most}s", "--format", drawn)
        assert (code, err) == (0, "")


def test_a_file_that_is_no_trace_exits_with_3(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("none here")
    code, out, err = run(*CASE, "--trace", tmp_path / "notes.json")
    assert (code, out) == (3, "")
    assert is_one_sentence(err)
