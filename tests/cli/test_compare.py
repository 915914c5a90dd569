"""`stepscope compare` as its users meet it: the contract's fields, thresholds, and what it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest
from tests.decode_steps import Work, graphed
from tests.kineto import Kineto
from tests.processes import is_one_sentence, process

import stepscope
from stepscope.document import Comparison

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

CONTRACT = {"before", "after", "delta_us", "by_class", "by_kernel", "findings", "prediction"}


def step_trace(path: Path, us: float, *, noise: float = 1.0, count: int = 9, batch: int = 1) -> Path:
    steps = [[Work("nvjet_a", us + noise * (step % 3))] for step in range(count)]
    return graphed(steps, annotation=f"step[DECODE bs={batch}]").save(path)


@pytest.fixture(name="fast")
def fast_fixture(tmp_path: Path) -> Path:
    return step_trace(tmp_path / "fast.json", 979.0)  # 1,001 µs a step at the median


@pytest.fixture(name="slow")
def slow_fixture(tmp_path: Path) -> Path:
    return step_trace(tmp_path / "slow.json", 1029.0)  # 5% longer


def test_the_document_has_the_fields_of_the_contract(run: Run, fast: Path, slow: Path) -> None:
    code, out, err = run("compare", fast, slow, "--format", "json", "--no-cache")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    jsonschema.Draft202012Validator(msgspec.json.schema(Comparison)).validate(found)
    assert found.keys() >= CONTRACT
    assert found["delta_us"].keys() == {"low", "expected", "high"}
    assert found["delta_us"]["expected"] == pytest.approx(50)
    assert found["findings"].keys() >= {"gone", "new", "changed"}
    assert found["prediction"] is None
    assert [(row["kernel_class"], row["delta_us"]) for row in found["by_class"]] == [("gemm", pytest.approx(50))]
    assert [(row["kernel"], row["delta_us"]) for row in found["by_kernel"]] == [("nvjet_a", pytest.approx(50))]
    assert found["before"]["traces"][0]["path"] == str(fast)
    assert found["after"]["traces"][0]["path"] == str(slow)


@pytest.mark.parametrize(
    ("limit", "code"),
    [("3%", 1), ("3", 1), ("4.9", 1), ("5.1%", 0), ("10 %", 0), ("0", 1), (".5", 1), ("900", 0)],
)
def test_a_slowdown_of_five_percent_fails_below_five(limit: str, code: int, run: Run, fast: Path, slow: Path) -> None:
    found, out, err = run("compare", fast, slow, "--fail-if-slower", limit, "--no-cache")
    assert (found, err) == (code, "")
    assert "slower (5%)" in out


def test_a_speed_up_and_a_trace_against_itself_pass(run: Run, fast: Path, slow: Path) -> None:
    assert run("compare", slow, fast, "--fail-if-slower", "0", "--no-cache")[0] == 0
    assert run("compare", slow, slow, "--fail-if-slower", "0", "--no-cache")[0] == 0


def test_noise_passes_however_low_the_threshold(run: Run, tmp_path: Path) -> None:
    before = step_trace(tmp_path / "before.json", 1000.0, noise=300.0)
    after = step_trace(tmp_path / "after.json", 1060.0, noise=300.0)
    code, out, _ = run("compare", before, after, "--fail-if-slower", "1%", "--no-cache")
    assert code == 0
    assert "no difference beyond noise" in out


def test_too_few_steps_pass_and_say_so(run: Run, tmp_path: Path) -> None:
    before, after = (step_trace(tmp_path / f"{us}.json", us, count=4) for us in (1000.0, 9000.0))
    code, out, err = run("compare", before, after, "--fail-if-slower", "1%", "--no-cache")
    assert code == 0
    assert "too few steps" in out
    assert is_one_sentence(err)
    assert "too few" in err


def test_five_steps_a_side_are_enough(run: Run, tmp_path: Path) -> None:
    before, after = (step_trace(tmp_path / f"{us}.json", us, count=5) for us in (1000.0, 9000.0))
    assert run("compare", before, after, "--fail-if-slower", "1%", "--no-cache")[0] == 1


@pytest.mark.parametrize("limit", ["", "%", "-3", "nan", "inf", "1e3", "three", "3%%", "٣"])
def test_a_threshold_that_is_none_is_refused(limit: str, run: Run, fast: Path, slow: Path) -> None:
    code, out, err = run("compare", fast, slow, f"--fail-if-slower={limit}", "--no-cache")
    assert (code, out) == (2, "")
    assert is_one_sentence(err)


def no_steps() -> Kineto:
    trace = Kineto(device=None)
    trace.op("aten::add", 1, 5)
    return trace


def test_what_cannot_be_compared_exits_with_2(run: Run, fast: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(2):
        step_trace(folder / f"rank{rank}.json", 1000.0)
    for after in (
        step_trace(tmp_path / "other.json", 1000.0, batch=16),
        no_steps().save(tmp_path / "cpu.json"),
        folder,
        tmp_path / "missing.json",
    ):
        for pair in ((fast, after), (after, fast)):
            code, out, err = run("compare", *pair, "--no-cache")
            assert (code, out) == (2, "")
            assert is_one_sentence(err)
    assert run("compare", fast)[0] == 2
    assert run("compare", fast, fast, fast)[0] == 2
    assert run("compare", fast, fast, "--format", "csv")[0] == 2
    assert run("compare", fast, fast, "--gpu", "h999")[0] == 2


def test_what_is_no_trace_exits_with_3(run: Run, fast: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("none here")
    code, out, err = run("compare", fast, tmp_path / "notes.json", "--no-cache")
    assert (code, out) == (3, "")
    assert is_one_sentence(err)


def test_a_file_takes_the_result(run: Run, fast: Path, slow: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.md"
    assert run("compare", fast, slow, "--format", "markdown", "--output", target, "--no-cache") == (0, "", "")
    assert target.read_text().startswith("# stepscope comparison\n")


def test_it_works_as_a_process_and_from_python(fast: Path, slow: Path) -> None:
    assert process("compare", fast, slow, "--fail-if-slower", "3%", "--no-cache").returncode == 1
    for _ in range(2):  # the function stays what it is once its module was imported
        assert stepscope.compare(fast, slow).delta_us.expected == pytest.approx(50)
