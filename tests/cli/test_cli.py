"""The command line as its users meet it: exit codes, one sentence for bad input, results whole or not at all."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest
from tests.decode_steps import Work, eager, graphed
from tests.processes import is_one_sentence, process
from tests.samples_of_trouble import HOSTILE, pool_cast

from stepscope import pipeline
from stepscope.document import json_schema

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[2]
EXECUTION_TRACE = REPOSITORY.parent / "shared/traces/public/HTA/execution_trace/benchmark_simple_add_et.json.gz"

Result = tuple[int, str, str]
"""Exit code, stdout, stderr."""


BAD_FILES = {
    "empty": b"",
    "an empty gzip": gzip.compress(b"", mtime=0),
    "half a gzip header": b"\x1f\x8b\x08",
    "binary": bytes(range(256)) * 50,
    "a program": b"\x7fELF" + bytes(500),
    "a zip archive": b"PK\x03\x04" + bytes(50),
    "text": b"2026-01-01 server started\n" * 20,
    "other JSON": b'{"architectures": ["GlmMoeDsaForCausalLM"]}',
    "an execution trace": b'{"schema": "1.1", "nodes": [{"id": 1}]}',
    "a number": b"42",
    "no events": b'{"schemaVersion": 1, "traceEvents": []}',
    "events that are none": b'{"traceEvents": [1, "x", null]}',
    "a damaged header": b'{"a" 1, "traceEvents": [{"ph": "X"}]}',
    "deep brackets": b"[" * 200_000,
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_file_that_is_no_trace_exits_with_3(what: str, tmp_path: Path, run: Callable[..., Result]) -> None:
    path = tmp_path / "input.json"
    path.write_bytes(BAD_FILES[what])
    code, out, err = run("diagnose", path)
    assert (code, out) == (3, "")
    assert is_one_sentence(err)
    assert str(path) in err


@pytest.mark.skipif(not EXECUTION_TRACE.exists(), reason="the public traces beside the repository are not there")
def test_the_public_file_that_is_no_trace_exits_with_3(run: Callable[..., Result]) -> None:
    code, out, err = run("diagnose", EXECUTION_TRACE)
    assert (code, out) == (3, "")
    assert is_one_sentence(err)
    assert "execution trace" in err


def test_a_folder_without_a_trace_exits_with_3(tmp_path: Path, run: Callable[..., Result]) -> None:
    (tmp_path / "notes.txt").write_text("none here")
    code, out, err = run("diagnose", tmp_path)
    assert (code, out) == (3, "")
    assert is_one_sentence(err)


def test_a_folder_of_other_json_exits_with_3_and_says_what_it_is(tmp_path: Path, run: Callable[..., Result]) -> None:
    (tmp_path / "config.json").write_text('{"architectures": []}')
    code, out, err = run("diagnose", tmp_path)
    assert (code, out) == (3, "")
    assert "architectures" in err
    assert all(line.startswith("stepscope: ") for line in err.splitlines())


def test_a_folder_passes_over_what_is_no_trace(trace: Path, tmp_path: Path, run: Callable[..., Result]) -> None:
    (tmp_path / "config.json").write_text('{"architectures": []}')
    (tmp_path / "t.json.gz").write_bytes(trace.read_bytes())
    code, out, err = run("diagnose", tmp_path, "--format", "json")
    assert code == 0
    assert [Path(read["path"]).name for read in json.loads(out)["traces"]] == ["t.json.gz"]
    assert is_one_sentence(err)
    assert "config.json" in err


WRONG_USAGE = {
    "a missing path": ["diagnose", "missing.json"],
    "no path": ["diagnose"],
    "an unknown model": ["diagnose", "TRACE", "--model", "gpt-9"],
    "an unknown GPU": ["diagnose", "TRACE", "--gpu", "h999"],
    "an unknown option": ["diagnose", "TRACE", "--frobnicate"],
    "an option of a later version": ["diagnose", "TRACE", "--scheduler", "tcp://localhost:1"],
    "an unknown format": ["diagnose", "TRACE", "--format", "yaml"],
    "a format of a later version": ["diagnose", "TRACE", "--format", "html"],
    "a diagnosis as CSV": ["diagnose", "TRACE", "--format", "csv"],
    "a diagnosis as Parquet": ["diagnose", "TRACE", "--format", "parquet"],
    "an unknown severity": ["diagnose", "TRACE", "--fail-on", "info"],
    "a group of none": ["diagnose", "TRACE", "--tp", "0"],
    "a group that is no number": ["diagnose", "TRACE", "--tp", "eight"],
    "a group that does not divide": ["diagnose", "TRACE", "--model", "glm-5", "--tp", "7"],
    "a context of none": ["diagnose", "TRACE", "--context", "-1"],
    "a missing source folder": ["diagnose", "TRACE", "--source", "missing"],
    "a source that is a file": ["diagnose", "TRACE", "--source", "TRACE"],
    "an option without a value": ["diagnose", "TRACE", "--model"],
    "an unknown command": ["frobnicate"],
    "an unknown rule": ["explain", "no-such-rule"],
    "no rule": ["explain"],
    "an argument too many": ["rules", "extra"],
    "an output in no folder": ["diagnose", "TRACE", "--output", "missing/out.json"],
    "a path too long": ["diagnose", "x" * 5000],
    "a source too long": ["diagnose", "TRACE", "--source", "x" * 5000],
    "an output too long": ["diagnose", "TRACE", "--output", "x" * 5000],
    "an output that is a folder": ["diagnose", "TRACE", "--output", "."],
}


@pytest.mark.parametrize("what", WRONG_USAGE)
def test_wrong_usage_exits_with_2(
    what: str, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*(trace if argument == "TRACE" else argument for argument in WRONG_USAGE[what]))
    assert (code, out) == (2, "")
    assert is_one_sentence(err)


def test_arguments_too_many_are_named(trace: Path, run: Callable[..., Result]) -> None:
    assert run("ops", trace, "second.json") == (2, "", "stepscope: too many arguments: second.json\n")


def test_a_capture_trace_that_is_no_file_is_refused_as_any_trace(
    trace: Path, tmp_path: Path, run: Callable[..., Result]
) -> None:
    folder = tmp_path / "several"
    folder.mkdir()
    for name in ("a.json", "b.json"):
        (folder / name).touch()
    assert run("diagnose", trace, "--capture-trace", folder)[::2] == (
        2,
        f"stepscope: {folder}: the folder holds 2 files that may be traces; name one of them\n",
    )
    missing = tmp_path / "missing.json"
    assert run("diagnose", trace, "--capture-trace", missing)[::2] == (
        2,
        f"stepscope: {missing}: no such file or folder\n",
    )


def test_an_unknown_name_is_said_before_anything_is_read(tmp_path: Path, run: Callable[..., Result]) -> None:
    """Reading a trace of a GB, only to refuse an option, would be rude."""
    path = tmp_path / "empty.json"
    path.touch()
    for option in ("--model", "--gpu", "--source"):
        assert run("diagnose", path, option, "nothing")[0] == 2


def test_a_hostile_path_comes_out_harmless(tmp_path: Path, run: Callable[..., Result]) -> None:
    code, _, err = run("diagnose", tmp_path / HOSTILE.replace("/", ""))
    assert code == 2
    assert is_one_sentence(err)


def test_done_exits_with_0_and_keeps_stderr_empty(trace: Path, run: Callable[..., Result]) -> None:
    code, out, err = run("diagnose", trace)
    assert (code, err) == (0, "")
    assert "kv-pool-cast" in out


@pytest.mark.parametrize("options", [[], ["--model", "glm-5", "--tp", "8", "--context", "1024", "--gpu", "h200"]])
def test_json_is_exactly_one_document(options: list[str], trace: Path, run: Callable[..., Result]) -> None:
    code, out, err = run("diagnose", trace, "--format", "json", *options)
    assert (code, err) == (0, "")
    document = json.loads(out)
    jsonschema.Draft202012Validator(json_schema()).validate(document)
    assert document["findings"][0]["rule"] == "kv-pool-cast"


@pytest.mark.parametrize(
    ("threshold", "with_cast", "code"),
    [("critical", True, 1), ("major", True, 1), ("minor", True, 1), ("minor", False, 0)],
)
def test_fail_on(threshold: str, code: int, tmp_path: Path, run: Callable[..., Result], *, with_cast: bool) -> None:
    path = pool_cast(with_cast=with_cast).save(tmp_path / "t.json")
    found, out, _ = run("diagnose", path, "--format", "json", "--fail-on", threshold)
    assert found == code
    severities = {finding["severity"] for finding in json.loads(out)["findings"]}
    assert ("critical" in severities) == with_cast


class TestOutput:
    def test_a_file_takes_the_place_of_stdout(self, trace: Path, tmp_path: Path, run: Callable[..., Result]) -> None:
        path = tmp_path / "out.json"
        path.write_text("old")
        assert run("diagnose", trace, "--format", "json", "--output", path) == (0, "", "")
        assert json.loads(path.read_text())["schema_version"] == 1
        assert [path.name for path in tmp_path.iterdir()] == ["out.json"]

    def test_it_has_the_rights_of_any_new_file(self, trace: Path, tmp_path: Path, run: Callable[..., Result]) -> None:
        other = tmp_path / "other"
        other.touch()
        run("diagnose", trace, "--output", tmp_path / "out")
        assert (tmp_path / "out").stat().st_mode == other.stat().st_mode

    def test_no_file_is_left_where_the_input_is_bad(self, tmp_path: Path, run: Callable[..., Result]) -> None:
        (tmp_path / "bad.json").write_text("{}")
        code, _, _ = run("diagnose", tmp_path / "bad.json", "--output", tmp_path / "out.json")
        assert code == 3
        assert [path.name for path in tmp_path.iterdir()] == ["bad.json"]

    def test_an_old_file_stays_where_the_writing_fails(
        self, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]
    ) -> None:
        from stepscope.report import json as renderer  # noqa: PLC0415 -- its name would hide the library's

        def fail(_diagnosis: object, stream: object) -> None:
            assert hasattr(stream, "write")
            stream.write("half of it")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(renderer, "draw", fail)
        path = tmp_path / "out.json"
        path.write_text("old")
        code, out, err = run("diagnose", trace, "--format", "json", "--output", path)
        assert (code, out) == (2, "")
        assert is_one_sentence(err)
        assert path.read_text() == "old"
        assert [path.name for path in tmp_path.iterdir()] == ["out.json"]

    @pytest.mark.parametrize("command", [["rules"], ["schema"], ["explain", "kv-pool-cast"]])
    def test_every_command_that_prints_takes_it(
        self, command: list[str], tmp_path: Path, run: Callable[..., Result]
    ) -> None:
        code, printed, _ = run(*command)
        assert code == 0
        assert run(*command, "--output", tmp_path / "out") == (0, "", "")
        assert (tmp_path / "out").read_text() == printed != ""


def test_a_capture_trace_tells_the_shapes_of_a_graph(tmp_path: Path, run: Callable[..., Result]) -> None:
    step = [Work(f"kernel_{number}", 5.0, "aten::mm", [[1, 8]], ["c10::BFloat16"]) for number in range(20)]
    graph = graphed([step] * 4).save(tmp_path / "graph.json")
    twin = eager([step, step]).save(tmp_path / "eager.json")
    alone, joined = (
        json.loads(run("diagnose", graph, *options, "--format", "json")[1])["traces"][0]["attribution"]
        for options in ([], ["--capture-trace", twin])
    )
    assert (alone["with_op"], alone["join_method"]) == (0.0, None)
    assert (joined["with_op"], joined["joined"], joined["join_method"]) == (1.0, 1.0, "eager-twin")


def test_a_capture_trace_without_stacks_is_not_asked_for_again(tmp_path: Path, run: Callable[..., Result]) -> None:
    step = [Work(f"kernel_{number}", 5.0, "aten::mm", [[1, 8]], ["c10::BFloat16"]) for number in range(20)]
    graph = graphed([step] * 4).save(tmp_path / "graph.json")
    twin = eager([step, step]).save(tmp_path / "eager.json")
    alone, joined = (
        " ".join(run("diagnose", graph, *options)[1].split()) for options in ([], ["--capture-trace", twin])
    )
    assert "--capture-trace can tell them" in alone
    assert "--capture-trace can tell them" not in joined
    assert "Python stacks were recorded neither here nor in --capture-trace (with_stack=True records them)" in joined
    assert "kernels of a graph, 100% of the kernel time, line up with the same kernels run eagerly" in joined


def test_rules_and_explain_agree(run: Callable[..., Result]) -> None:
    listed = json.loads(run("rules", "--format", "json")[1])["rules"]
    assert {"kv-pool-cast", "redundant-cast", "launch-bound"} <= {rule["id"] for rule in listed}
    for rule in listed:
        assert set(rule) == {"id", "title", "phases", "needs"}
        assert rule["id"] in run("rules")[1]
        assert f"`{rule['id']}`" in run("rules", "--format", "markdown")[1]
        for report_format in ("terminal", "markdown", "json"):
            code, out, _ = run("explain", rule["id"], "--format", report_format)
            assert code == 0
            assert rule["id"] in out


def test_schema_is_the_documents(run: Callable[..., Result]) -> None:
    code, out, _ = run("schema")
    assert (code, json.loads(out)) == (0, json_schema())


@pytest.mark.parametrize("report_format", ["terminal", "markdown", "json"])
def test_the_demo_needs_nothing(report_format: str, run: Callable[..., Result]) -> None:
    code, out, err = run("demo", "--format", report_format)
    assert (code, err) == (0, "")
    assert "kv-pool-cast" in out
    if report_format == "json":
        rules = {finding["rule"] for finding in json.loads(out)["findings"]}
        assert "kv-pool-cast" in rules


def test_an_interruption_exits_with_130(
    trace: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "diagnose", interrupt)
    code, out, err = run("diagnose", trace)
    assert (code, out) == (130, "")
    assert is_one_sentence(err)


def test_offered_commands_are_those_that_work() -> None:
    text = process("--help").stdout
    commands = (
        "calibrate",
        "compare",
        "demo",
        "diagnose",
        "explain",
        "ops",
        "probe",
        "rules",
        "schema",
        "sql",
        "what-if",
    )
    for command in commands:
        assert command in text
    assert "capture" not in text


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    started = time.perf_counter()
    finished = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "stepscope", "--help"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    took = time.perf_counter() - started
    imported = {line.rpartition("|")[2].strip() for line in finished.stderr.splitlines()}
    assert finished.returncode == 0
    assert "diagnose" in finished.stdout
    assert "stepscope.cli" in imported
    assert not {"polars", "numpy", "isal", "torch", "pandas"} & imported
    assert took < 5  # far above what it takes, so that a busy machine does not fail it


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, stepscope; stepscope.__version__; sys.exit(bool({'polars', 'numpy', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0  # noqa: S603


def test_as_a_process_it_does_the_same(trace: Path, tmp_path: Path) -> None:
    done = process("diagnose", trace, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["findings"]
    missing = process("diagnose", tmp_path / "missing.json")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert is_one_sentence(missing.stderr)
