"""`what-if` as its users meet it: each change alone, one after another, and what cannot be changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.kineto import Kineto
from tests.processes import is_one_sentence
from tests.published_cases import launched_one_by_one, waits_for_copies

from stepscope import what_if
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Result = tuple[int, str, str]
STEP = "step[DECODE bs=4]"


@pytest.fixture(name="path", scope="module")
def path_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four decode steps of four requests: 100 + 60 + 40 on the GPU, all launched long before they run."""
    trace = Kineto()
    for begin in range(0, 80, 20):
        trace.annotation(STEP, begin, 19)
        for index, (name, us) in enumerate((("gemm_a", 100), ("gemm_b", 60), ("norm", 40))):
            trace.call(name, at=begin + 5 * index, duration=us)
    return trace.save(tmp_path_factory.mktemp("what_if") / "trace.json")


def document(run: Callable[..., Result], *arguments: str | Path) -> Any:
    code, out, err = run("what-if", *arguments, "--format", "json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_each_change_alone_and_one_after_another(path: Path, run: Callable[..., Result]) -> None:
    (phase,) = document(run, path, "--remove", "norm", "--scale", "gemm_*=0.5")["phases"]
    assert phase["duration_us"]["median"] == 200.0
    assert phase["tokens_per_s"] == pytest.approx(20_000)  # 4 requests in 200 µs
    norm, gemms = phase["changes"]
    assert (norm["change"], norm["calls_per_step"], norm["time_us_per_step"]) == ("norm", 1.0, 40.0)
    assert norm["step_us"]["expected"] == 160.0
    assert norm["gain_fraction"] == pytest.approx(0.2)
    assert norm["tokens_per_s"]["expected"] == pytest.approx(25_000)
    assert norm["tokens_per_s"]["low"] <= norm["tokens_per_s"]["expected"] <= norm["tokens_per_s"]["high"]
    assert (gemms["change"], gemms["calls_per_step"], gemms["time_us_per_step"]) == ("gemm_*=0.5", 2.0, 160.0)
    assert gemms["step_us"]["expected"] == 120.0
    assert [(rung["fixed"], rung["step_us"]) for rung in phase["ladder"]] == [("norm", 160.0), ("gemm_*=0.5", 80.0)]


@pytest.mark.parametrize("report_format", ["terminal", "markdown"])
def test_what_is_read_says_the_same(path: Path, report_format: str, run: Callable[..., Result]) -> None:
    code, out, err = run("what-if", path, "--remove", "norm", "--scale", "gemm_b=0.5", "--format", report_format)
    assert (code, err) == (0, "")
    text = " ".join(out.split()).replace("\\", "")
    assert "decode, batch 4, 3 steady steps: today 200.0 µs a step (GPU span 200.0 µs), 20,000.0 tokens/s" in text
    assert "One after another: 200.0 µs, after norm 160.0 µs, after gemm_b=0.5 too 130.0 µs." in text
    assert "norm assumes: the work is gone with the calls that launched only it" in text


def test_a_change_is_named_with_the_work_that_it_is_about(tmp_path: Path, run: Callable[..., Result]) -> None:
    path = launched_one_by_one().save(tmp_path / "trace.json")
    code, out, _ = run("what-if", path, "--remove", "launch-bound", "--scale", "*=0.5")
    assert code == 0
    lines = out.splitlines()
    assert "launch-bound" in lines  # no work of the GPU is gone
    assert any(line.startswith("*=0.5 (") and line.endswith(" of GPU time a step)") for line in lines)


def test_a_rule_is_taken_out_as_in_the_diagnosis(tmp_path: Path, run: Callable[..., Result]) -> None:
    path = launched_one_by_one().save(tmp_path / "trace.json")
    (phase,) = document(run, path, "--remove", "launch-bound")["phases"]
    diagnosis = json.loads(run("diagnose", path, "--format", "json")[1])
    (finding,) = diagnosis["findings"]
    assert phase["changes"][0]["step_us"] == finding["what_if"]["step_us"]
    assert phase["changes"][0]["assumption"] == finding["what_if"]["assumption"]
    (rung,) = diagnosis["ladder"]
    assert (rung["fixed"], rung["step_us"]) == ("launch-bound", finding["what_if"]["step_us"]["expected"])


def test_a_rule_that_finds_only_time_of_the_host_is_taken_out_too(tmp_path: Path, run: Callable[..., Result]) -> None:
    path = waits_for_copies().save(tmp_path / "trace.json")
    (phase,) = document(run, path, "--remove", "hidden-sync")["phases"]
    assert phase["changes"][0]["step_us"]["expected"] == pytest.approx(1_643_000, rel=0.01)


def test_calls_that_wait_can_be_taken_out(tmp_path: Path, run: Callable[..., Result]) -> None:
    path = waits_for_copies().save(tmp_path / "trace.json")
    (phase,) = document(run, path, "--remove", "cudaStream*")["phases"]
    (change,) = phase["changes"]
    assert (change["calls_per_step"], change["time_us_per_step"]) == (12.0, 0.0)
    assert change["step_us"]["expected"] == pytest.approx(1_678_000 - 33_100, rel=0.001)


def test_a_launch_goes_with_its_kernel_unless_it_launched_more(tmp_path: Path) -> None:
    trace = Kineto()
    for begin in range(0, 1200, 300):
        trace.annotation(STEP, begin, 290)
        for index, name in enumerate(("kept", "gone", "kept")):
            correlation = trace.launch(begin + 100 * index, 90)
            trace.kernel(name, begin + 100 * index + 92, 5, correlation=correlation)
    path = trace.save(tmp_path / "trace.json")
    (phase,) = what_if(path, remove=["gone"]).phases
    assert phase.changes[0].step_us.expected == 210.0  # each launch costs the host 90 of 300
    for launch in [event for event in trace.events if event["cat"] == "cuda_runtime"][1::3]:
        trace.kernel("kept", launch["ts"] + 98, 1, correlation=launch["args"]["correlation"])
    (phase,) = what_if(trace.save(path), remove=["gone"]).phases
    assert phase.changes[0].step_us.expected == 300.0


def test_a_scale_may_be_a_duration(path: Path, run: Callable[..., Result]) -> None:
    (phase,) = document(run, path, "--scale", "gemm_*=15us")["phases"]
    (change,) = phase["changes"]
    assert change["step_us"]["expected"] == 15 + 15 + 40
    (phase,) = document(run, path, "--scale", "norm=0.1ms")["phases"]
    assert phase["changes"][0]["step_us"]["expected"] == 100 + 60 + 100


def test_the_largest_scales_together_have_an_end(path: Path, run: Callable[..., Result]) -> None:
    globs = ("*", "?*", "*?", "g*", "*_*", "ge*", "gem*")
    (phase,) = document(run, path, *(each for glob in globs for each in ("--scale", f"{glob}=1000000")))["phases"]
    steps = [rung["step_us"] for rung in phase["ladder"]]
    assert len(steps) == len(globs)
    assert 1e6 < steps[0] < steps[-1] < 1e16


def test_kernels_that_follow_each_other_are_fused_into_the_longest(path: Path, run: Callable[..., Result]) -> None:
    (phase,) = document(run, path, "--fuse", "gemm_b|norm")["phases"]
    (change,) = phase["changes"]
    assert (change["change"], change["step_us"]["expected"]) == ("gemm_b|norm", 160.0)
    assert "each chain is one kernel" in change["assumption"]


WRONG = {
    "nothing": ([], "nothing to change"),
    "a name that is in no step": (["--remove", "no_such_kernel"], "no_such_kernel: names no rule, and no kernel"),
    "a rule without a finding": (["--remove", "kv-pool-cast"], "the rule found nothing in this trace"),
    "a factor that is none": (["--scale", "gemm*=fast"], "GLOB=FACTOR"),
    "a factor below nothing": (["--scale", "gemm*=-1"], "GLOB=FACTOR"),
    "no end of a factor": (["--scale", "gemm*=inf"], "GLOB=FACTOR"),
    "a factor that no time has room for": (["--scale", "gemm*=1e308"], "at most 1,000,000 times as long"),
    "a duration that no time has room for": (["--scale", "gemm*=1e30us"], "or an hour"),
    "no factor": (["--scale", "gemm*"], "GLOB=FACTOR"),
    "a duration of no unit": (["--scale", "gemm*=3parsecs"], "GLOB=DURATION"),
    "nothing to fuse": (["--fuse", "nothing"], "--fuse nothing: no two such kernels follow each other"),
    "kernels with another one between them": (["--fuse", "gemm_a|norm"], "no two such kernels follow each other"),
    "a scale of what is not there": (["--scale", "nothing=0.5"], "nothing=0.5: names no rule"),
    "a model that is not known": (["--remove", "norm", "--model", "nope"], "nope"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_changed_is_said_in_a_sentence(what: str, path: Path, run: Callable[..., Result]) -> None:
    arguments, said = WRONG[what]
    code, out, err = run("what-if", path, *arguments)
    assert (code, out) == (2, "")
    assert is_one_sentence(err)
    assert said in err


def test_a_trace_without_steps_on_a_gpu_has_nothing_to_change(tmp_path: Path) -> None:
    trace = Kineto()
    trace.annotation(STEP, 0, 100)
    trace.op("aten::mm", 10, 20)
    with pytest.raises(UsageError, match="no steps with GPU work"):
        what_if(trace.save(tmp_path / "trace.json"), remove=["*"])
