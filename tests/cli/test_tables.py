"""`ops` and `sql` as their users meet them: formats, exit codes, and names that a terminal must not obey."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import polars as pl
import pytest
from tests.decode_steps import Work, copied, eager
from tests.samples_of_trouble import HOSTILE, pool_cast

from stepscope.cli.sql import sql
from stepscope.pipeline.op_groups import COLUMNS
from stepscope.trace.tables import COLUMNS as TABLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Result = tuple[int, str, str]
"""Exit code, stdout, stderr."""
COMMANDS = {"ops": ["ops", "TRACE"], "sql": ["sql", "TRACE", "SELECT name, duration_us FROM kernels ORDER BY kernel"]}
FORMATS = ["terminal", "json", "markdown", "csv"]


@pytest.fixture(name="trace", scope="module")
def trace_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = [copied("cast", 30.5, [100, 8], "c10::Float8_e4m3fn", "c10::BFloat16"), Work("gemm", 9.0, "aten::mm")]
    return eager([work] * 3, stacks=True).save(tmp_path_factory.mktemp("trace") / "trace.json.gz")


def command(name: str, trace: Path) -> list[str | Path]:
    return [trace if argument == "TRACE" else argument for argument in COMMANDS[name]]


def test_ops_as_json_is_the_contracts(trace: Path, run: Callable[..., Result]) -> None:
    code, out, err = run("ops", trace, "--format", "json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert list(document) == ["ops"]
    assert [list(row) for row in document["ops"]] == [list(COLUMNS)] * 2
    assert document["ops"][0] == {
        "name": "aten::copy_",
        "input_shapes": [[100, 8], [100, 8], []],
        "dtypes": ["BFloat16", "Float8_e4m3fn", None],
        "calls": 3,
        "calls_per_step": 1.0,
        "time_us_per_step": 30.5,
        "kernel": "cast",
        "grid": [1, 1, 1],
        "bytes_per_call": 2400,
        "parents": [],
        "source": "model.py:10 forward",
        "module": None,
        "layers": None,
    }


def test_sql_as_json_is_the_contracts(trace: Path, run: Callable[..., Result]) -> None:
    code, out, err = run("sql", trace, "SELECT name, bytes, duration_us FROM kernels LIMIT 1", "--format", "json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"columns": ["name", "bytes", "duration_us"], "rows": [["cast", None, 30.5]]}


def test_numbers_that_json_has_no_name_for_are_null(trace: Path, run: Callable[..., Result]) -> None:
    _, out, _ = run("sql", trace, "SELECT duration_us / 0 AS x, 2.5 AS y FROM kernels LIMIT 1", "--format", "json")
    assert json.loads(out)["rows"] == [[None, 2.5]]


def test_ops_as_csv_holds_lists_as_json(trace: Path, run: Callable[..., Result]) -> None:
    code, out, err = run("ops", trace, "--name", "aten::*", "--format", "csv")
    assert (code, err) == (0, "")
    row, other = csv.DictReader(io.StringIO(out))
    assert list(row) == list(COLUMNS)
    assert json.loads(row["input_shapes"]) == [[100, 8], [100, 8], []]
    assert (row["calls_per_step"], row["time_us_per_step"], row["grid"]) == ("1.0", "30.5", "[1,1,1]")
    assert (other["name"], other["input_shapes"], other["bytes_per_call"]) == ("aten::mm", "", "")


def test_parquet_to_a_file_and_to_a_pipe_is_the_table(trace: Path, tmp_path: Path, run: Callable[..., Result]) -> None:
    path = tmp_path / "ops.parquet"
    assert run("ops", trace, "--format", "parquet", "--output", path) == (0, "", "")
    frame = pl.read_parquet(path)
    assert frame.schema == COLUMNS
    assert frame["time_us_per_step"].to_list() == [30.5, 9.0]
    piped = subprocess.run(  # noqa: S603 -- our own command
        [sys.executable, "-m", "stepscope", *map(str, command("sql", trace)), "--format", "parquet"],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert pl.read_parquet(io.BytesIO(piped.stdout))["name"].to_list() == ["cast", "gemm"] * 3


@pytest.mark.parametrize("name", COMMANDS)
def test_a_terminal_gets_no_parquet(
    name: str, trace: Path, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, out, err = run(*command(name, trace), "--format", "parquet")
    assert (code, out) == (2, "")
    assert "--output" in err


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("report_format", FORMATS)
def test_every_format_goes_to_a_file_too(
    name: str, report_format: str, trace: Path, tmp_path: Path, run: Callable[..., Result]
) -> None:
    code, printed, err = run(*command(name, trace), "--format", report_format)
    assert (code, err) == (0, "")
    assert "cast" in printed
    assert run(*command(name, trace), "--format", report_format, "--output", tmp_path / "out") == (0, "", "")
    assert (tmp_path / "out").read_text() == printed


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("report_format", ["terminal", "markdown"])
def test_hostile_names_come_out_harmless(
    name: str, report_format: str, tmp_path: Path, run: Callable[..., Result]
) -> None:
    path = pool_cast(name=HOSTILE).save(tmp_path / "t.json")
    code, out, _ = run(*command(name, path), "--format", report_format)
    assert code == 0
    assert all(character.isprintable() for character in out.replace("\n", ""))
    assert "<script>" not in out or report_format == "terminal"


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are terminals to imitate on POSIX systems only")
def test_csv_on_a_terminal_is_harmless_too(tmp_path: Path) -> None:
    path = pool_cast(name=HOSTILE).save(tmp_path / "t.json")
    ours, theirs = os.openpty()
    arguments = [sys.executable, "-m", "stepscope", "ops", str(path), "--format", "csv"]
    with subprocess.Popen(arguments, stdout=theirs, stderr=subprocess.PIPE):  # noqa: S603 -- our own command
        os.close(theirs)
        shown = b""
        try:
            while block := os.read(ours, 1 << 16):
                shown += block
        except OSError:  # how Linux says that the other end has hung up
            pass
    os.close(ours)
    assert b"nvjet_gemm" in shown
    assert b"\x1b" not in shown
    assert b"\xe2\x80\xae" not in shown  # text from right to left


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_wide_answer_is_cut_at_the_width_and_says_what_is_missing(
    columns: int, tmp_path: Path, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    path = eager([[Work("gemm" * 100, 1.0)] * 20] * 3).save(tmp_path / "t.json")
    _, out, _ = run("sql", path, "SELECT * FROM kernels")
    assert max(map(len, out.splitlines())) <= columns
    said = " ".join(out.split())
    assert "10 more of 60 rows" in said
    assert ("no room for" in said) == (columns < 200)
    _, out, _ = run("ops", path)
    assert max(map(len, out.splitlines())) <= columns


def test_more_ops_than_a_person_reads_are_counted(tmp_path: Path, run: Callable[..., Result]) -> None:
    path = eager([[Work(f"kernel_{number}", 50.0 - number) for number in range(25)]] * 3).save(tmp_path / "t.json")
    _, out, _ = run("ops", path)
    assert ("kernel_19" in out, "kernel_20" in out) == (True, False)
    assert "5 more of 25 rows" in out
    assert len(json.loads(run("ops", path, "--format", "json")[1])["ops"]) == 25


def test_a_name_that_matches_nothing_is_said(trace: Path, run: Callable[..., Result]) -> None:
    code, out, err = run("ops", trace, "--name", "aten::nope", "--format", "json")
    assert (code, json.loads(out)) == (0, {"ops": []})
    assert "'*aten::nope*' looks inside names" in err
    assert "looks inside" not in run("ops", trace, "--name", "*nope*")[2]
    assert run("ops", trace, "--name", "aten::nope")[1] == "No rows.\n"


WRONG_USAGE = {
    "no trace": ["ops"],
    "a missing trace": ["ops", "missing.json"],
    "two traces": ["ops", "TRACE", "TRACE"],
    "a format that is none": ["ops", "TRACE", "--format", "yaml"],
    "an option of diagnose": ["ops", "TRACE", "--model", "glm-5"],
    "no query": ["sql", "TRACE"],
    "a query on nothing": ["sql", "missing.json", "SELECT 1"],
    "a bad query": ["sql", "TRACE", "SELECT nope FROM kernels"],
    "a change": ["sql", "TRACE", "DROP TABLE kernels"],
    "a file": ["sql", "TRACE", "SELECT * FROM read_csv('x.csv')"],
    "a hostile query": ["sql", "TRACE", f"SELECT {HOSTILE}"],
    "a folder of several": ["ops", "FOLDER"],
}


@pytest.mark.parametrize("what", WRONG_USAGE)
def test_wrong_usage_exits_with_2_and_one_sentence(
    what: str, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("{}")
    known = {"TRACE": str(trace), "FOLDER": str(tmp_path)}
    code, out, err = run(*(known.get(argument, argument) for argument in WRONG_USAGE[what]))
    assert (code, out) == (2, "")
    assert err.startswith("stepscope: ")
    assert len(err.splitlines()) == 1
    assert err[:-1].isprintable()


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_no_trace_exits_with_3(name: str, tmp_path: Path, run: Callable[..., Result]) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": []}')
    code, out, err = run(*command(name, path))
    assert (code, out) == (3, "")
    assert str(path) in err


def test_a_folder_of_one_trace_is_that_trace(trace: Path, run: Callable[..., Result]) -> None:
    assert run("ops", trace.parent) == run("ops", trace)


def test_a_trace_whose_totals_are_doubtful_is_said_to_be(
    trace: Path, tmp_path: Path, run: Callable[..., Result]
) -> None:
    import gzip  # noqa: PLC0415 -- here alone

    path = tmp_path / "cut.json"
    path.write_bytes(gzip.decompress(trace.read_bytes())[:-40])
    code, _, err = run("ops", path)
    assert code == 0
    assert "cut" in err


def test_the_help_names_every_table_and_column(run: Callable[..., Result]) -> None:
    assert sql.__doc__ is not None
    said = run("sql", "--help")[1]
    for table, columns in TABLES.items():
        assert table in sql.__doc__
        for column in columns:
            assert column in said


@pytest.mark.parametrize("report_format", FORMATS)
def test_values_of_every_kind_can_be_written(report_format: str, trace: Path, run: Callable[..., Result]) -> None:
    query = (
        "SELECT INTERVAL '1 day' AS a, DATE '2026-01-02' AS b, TRUE AS c, NULL AS d, ARRAY_AGG(step) AS e FROM steps"
    )
    code, out, err = run("sql", trace, query, "--format", report_format)
    assert (code, err) == (0, "")
    assert "2026-01-02" in out
