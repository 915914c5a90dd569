"""SQL over a trace: the tables as documented, queries only, and one sentence for a bad one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.kineto import Kineto
from tests.stages import stepped

from stepscope.errors import UsageError
from stepscope.pipeline.tables import check_query, run_query, tables
from stepscope.trace.tables import COLUMNS

if TYPE_CHECKING:
    from pathlib import Path


def small() -> Kineto:
    """Two steps: a GEMM launched by an op within an op, and a copy back without an op."""
    trace = Kineto()
    for begin in (100.0, 200.0):
        trace.annotation("step[DECODE bs=4]", begin, 60)
        trace.frame("m.py(1): f", begin + 1, 50)
        trace.op("aten::linear", begin + 2, 20, dims=[[4, 8]], types=["c10::BFloat16"])
        trace.call("nvjet_gemm", at=begin + 5, duration=12, op="aten::mm", grid=(2, 3, 4))
        trace.memcpy(begin + 40, 2.5, size=32, correlation=trace.launch(begin + 30, name="cudaMemcpyAsync"))
    return trace


def answer(query: str, trace: Kineto | None = None) -> list[tuple[Any, ...]]:
    linked, steps = stepped(trace or small())
    return run_query(linked, steps, query).rows()


def test_the_tables_have_the_columns_that_are_documented() -> None:
    linked, steps = stepped(small())
    found = {name: tuple(table.collect_schema()) for name, table in tables(linked, steps).items()}
    assert found == COLUMNS


def test_kernels() -> None:
    rows = answer("SELECT kernel, start_us, duration_us, name, kind, kernel_class, bytes, step FROM kernels")
    assert rows == [  # the first span begins at 100 µs; a kernel 6 µs after its launch
        (0, 11.0, 12.0, "nvjet_gemm", "kernel", "gemm", None, 0),
        (1, 40.0, 2.5, "Memcpy DtoH (Device -> Pinned)", "memcpy", "memcpy", 32, 0),
        (2, 111.0, 12.0, "nvjet_gemm", "kernel", "gemm", None, 1),
        (3, 140.0, 2.5, "Memcpy DtoH (Device -> Pinned)", "memcpy", "memcpy", 32, 1),
    ]
    assert answer("SELECT grid_x, grid_y, grid_z, block_x FROM kernels WHERE kernel = 0") == [(2, 3, 4, 128)]


def test_kernels_join_ops_and_these_their_parents() -> None:
    query = """
        SELECT k.name, o.name AS op, p.name AS parent, p.input_dims, p.input_types, o.step
        FROM kernels k LEFT JOIN ops o ON k.op = o.op LEFT JOIN ops p ON o.parent = p.op
        WHERE k.step = 1 ORDER BY k.kernel
    """
    assert answer(query) == [
        ("nvjet_gemm", "aten::mm", "aten::linear", "[[4, 8]]", '["c10::BFloat16"]', 1),
        ("Memcpy DtoH (Device -> Pinned)", None, None, None, None, None),
    ]


def test_steps() -> None:
    assert answer("SELECT * FROM steps") == [
        (0, "step[DECODE bs=4]", "decode", 4, 4, True, 0.0, 11.0, 42.5, 2),
        (1, "step[DECODE bs=4]", "decode", 4, 4, True, 100.0, 111.0, 142.5, 2),
    ]


def test_events_are_of_every_kind() -> None:
    assert answer("SELECT kind, COUNT(*) AS n FROM events GROUP BY kind ORDER BY kind") == [
        ("annotation", 2),
        ("frame", 2),
        ("kernel", 2),
        ("launch", 4),
        ("memcpy", 2),
        ("op", 4),
    ]


def test_frames_and_numbers() -> None:
    assert answer("WITH f AS (SELECT * FROM frames) SELECT name, duration_us * 0.5 AS half FROM f LIMIT 1") == [
        ("m.py(1): f", 25.0)
    ]
    (row,) = answer("-- a comment\n(SELECT 2.5 AS x)")
    assert row == (2.5,)
    assert isinstance(row[0], float)


def test_differences_of_row_numbers_may_be_negative() -> None:
    assert answer("SELECT op - 5 AS d FROM ops LIMIT 1") == [(-5,)]


NO_QUERY = {
    "nothing": "",
    "blanks": "  \n",
    "no SQL": "kernels, please",
    "half a query": "SELECT",
    "an unknown table": "SELECT * FROM launches",
    "an unknown column": "SELECT nope FROM ops",
    "an unknown function": "SELECT frobnicate(name) FROM ops",
    "types that do not fit": "SELECT SUM(name) FROM ops",
    "text that is no number": "SELECT CAST('aten' AS INT) FROM ops",
    "two queries": "SELECT 1; SELECT 2",
    "a query and a change": "SELECT 1; DROP TABLE ops",
    "a copy to a file": "COPY ops TO 'FILE'",
    "a new table": "CREATE TABLE x AS SELECT * FROM ops",
    "a dropped table": "DROP TABLE ops",
    "a deletion": "DELETE FROM ops WHERE op = 0",
    "a deletion after WITH": "WITH x AS (SELECT 1) DELETE FROM ops",
    "a truncation": "TRUNCATE TABLE ops",
    "an insertion": "INSERT INTO ops VALUES (1)",
    "SELECT INTO": "SELECT * INTO 'FILE' FROM ops",
    "a CSV file": "SELECT * FROM read_csv('FILE')",
    "a CSV file in capitals": "SELECT * FROM READ_CSV ('FILE')",
    "a CSV file, quoted": "SELECT * FROM \"read_csv\"('FILE')",
    "a CSV file in backticks": "SELECT * FROM `read_csv`('FILE')",
    "a CSV file behind a comment": "SELECT * FROM read_csv/**/('FILE')",
    "a CSV file behind a line": "SELECT * FROM read_csv--\n('FILE')",
    "a CSV file below": "WITH x AS (SELECT * FROM read_csv('FILE')) SELECT * FROM x",
    "a Parquet file": "SELECT * FROM read_parquet('FILE')",
    "a JSON file": "SELECT * FROM read_json('FILE')",
    "a file by name": "SELECT * FROM 'FILE'",
    "half a character": "SELECT '\ud800' AS x",
    "many comments and no query": "/**/" * 5000 + "x",
    "a recursion, which would not end": "WITH/**/RECURSIVE x AS (SELECT 1 UNION ALL SELECT 2 FROM x) SELECT * FROM x",
    "deep brackets": "SELECT " + "(" * 5000 + "1" + ")" * 5000,
}


@pytest.mark.parametrize("what", NO_QUERY)
def test_what_is_no_query_is_refused_in_one_sentence_before_a_trace_is_read(what: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("secret\nvalue\n")
    with pytest.raises(UsageError) as refused:
        check_query(NO_QUERY[what].replace("FILE", str(secret)))
    sentence = str(refused.value)
    assert sentence.startswith("sql: ")
    assert "\n" not in sentence
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]
    assert secret.read_text() == "secret\nvalue\n"


def test_an_unknown_table_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"launches.*events, kernels, ops, frames, steps"):
        check_query("SELECT * FROM launches")


def test_a_name_that_looks_like_a_reader_may_be_looked_for() -> None:
    check_query("SELECT * FROM frames WHERE name LIKE '%read_csv%'")


def test_what_only_the_data_makes_wrong_is_refused_too() -> None:
    with pytest.raises(UsageError, match="conversion"):
        answer("SELECT CAST(name AS INT) AS x FROM ops")


def test_a_trace_without_gpu_work_or_ops_has_empty_tables() -> None:
    trace = Kineto()
    trace.frame("m.py(1): f", 1, 2)
    assert answer("SELECT * FROM kernels", trace) == []
    assert answer("SELECT * FROM ops", trace) == []
    assert answer("SELECT * FROM steps", trace) == []


ONLY_WITH_ROWS = {
    "the largest": ("SELECT kernel FROM kernels WHERE start_us = (SELECT MAX(start_us) FROM kernels)", [(3,)]),
    "the first": ("SELECT name FROM ops WHERE op = (SELECT op FROM ops ORDER BY op LIMIT 1)", [("aten::linear",)]),
    "those of steps": ("SELECT op FROM ops WHERE step IN (SELECT step FROM steps WHERE step > 0)", [(2,), (3,)]),
    "a window": ("SELECT start_us - LAG(start_us) OVER (ORDER BY start_us) AS d FROM steps", [(None,), (100.0,)]),
}


@pytest.mark.parametrize("what", ONLY_WITH_ROWS)
def test_a_query_that_needs_rows_is_not_refused_because_nothing_was_read_yet(what: str) -> None:
    query, expected = ONLY_WITH_ROWS[what]
    check_query(query)
    assert answer(query) == expected
