"""A trace as SQL tables, for what no command answers; `trace.tables` says what the columns hold."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import polars as pl

from stepscope.errors import UsageError
from stepscope.pipeline.attribute import classes
from stepscope.pipeline.link import NONE, link, parents
from stepscope.pipeline.steps import find_steps
from stepscope.trace import Trace
from stepscope.trace.schema import TABLES as STORED
from stepscope.trace.schema import polars_schema
from stepscope.trace.tables import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps

_SPACE = r"(?>\s|--[^\n]*(?:\n|$)|/\*.*?\*/)"  # atomic: else comments could be divided in 2^n ways
_BEGINS = re.compile(rf"(?:\(|{_SPACE})*+(?:select|with)\b", re.IGNORECASE | re.DOTALL)
_RECURS = re.compile(rf"\bwith{_SPACE}+recursive\b", re.IGNORECASE | re.DOTALL)
_READS_FILES = re.compile(r"\bread_\w+[\"`\]]?\s*(?:\(|--|/\*)", re.IGNORECASE)


def check_query(sql: str) -> None:
    """Refuse what is no query over these tables, before a trace is read.

    Raises:
        UsageError: it is not one SELECT, reads files, or names what does not exist.
    """
    nothing = {name: pl.DataFrame(schema=polars_schema(columns)) for name, columns in STORED.items()}
    empty = Trace(
        path="",
        file_bytes=0,
        event_count=0,
        **nothing,  # type: ignore[arg-type] # the names are those of the tables' fields
        threads=(),
        header={},
        rank=None,
        device_name=None,
    )
    linked = link(empty)
    with _said_in_a_sentence():
        _planned(linked, find_steps(linked), sql).collect_schema()


def run_query(linked: Linked, steps: Steps, sql: str) -> pl.DataFrame:
    """Return the answer to a query.

    Raises:
        UsageError: it is not one SELECT, reads files, or cannot be answered.
    """
    with _said_in_a_sentence():
        answer = _planned(linked, steps, sql).collect()
    return answer.with_columns(pl.col(pl.Decimal).cast(pl.Float64))  # what a number such as 2.5 in a query is


def _planned(linked: Linked, steps: Steps, sql: str) -> pl.LazyFrame:
    if not _BEGINS.match(sql):
        raise UsageError("sql: only queries that begin with SELECT or WITH are answered")
    if _RECURS.search(sql):
        raise UsageError("sql: WITH RECURSIVE is not answered")  # Polars takes it for a plain WITH, and does not end
    if _READS_FILES.search(sql):
        raise UsageError(f"sql: a query reads the tables {', '.join(COLUMNS)}, and no files")
    return pl.SQLContext(tables(linked, steps)).execute(sql, eager=False)


@contextmanager
def _said_in_a_sentence() -> Iterator[None]:
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, UnicodeError) as error:
        raise UsageError(f"sql: {_sentence(str(error))}") from None


def tables(linked: Linked, steps: Steps) -> dict[str, pl.LazyFrame]:
    """Return the tables by name, with the columns that `COLUMNS` lists; what a query does not use is not computed."""
    trace = linked.trace
    kernels = linked.kernels.with_row_index("kernel").with_columns(
        pl.Series("kernel_class", classes(linked.kernels.select("name", "kind")), dtype=pl.String),
        _rows("step", steps.step_of_kernel),
    )
    start = trace.ops["start_ns"].to_numpy()
    parent = parents(trace.ops["thread"].to_numpy(), start, start + trace.ops["duration_ns"].to_numpy())
    ops = trace.ops.with_row_index("op").with_columns(_rows("parent", parent), _rows("step", steps.at(start)))
    found: dict[str, pl.LazyFrame] = {
        "events": _events(trace),
        "kernels": kernels.lazy(),
        "ops": ops.lazy(),
        "frames": trace.frames.with_row_index("frame").lazy(),
        "steps": _steps(linked, steps).lazy(),
    }
    return {name: _presented(table).select(*COLUMNS[name]) for name, table in found.items()}


def _presented(table: pl.LazyFrame) -> pl.LazyFrame:
    """Turn ns into µs, names into text, and numbers of rows into numbers that differences can be taken of."""
    schema = table.collect_schema()
    times = [(pl.col(name) / 1e3).alias(f"{name.removesuffix('_ns')}_us") for name in schema if name.endswith("_ns")]
    text = [pl.col(name).cast(pl.String) for name, dtype in schema.items() if dtype == pl.Categorical]
    rows = [pl.col(name).cast(pl.Int64) for name, dtype in schema.items() if dtype == pl.UInt32]
    return table.with_columns(*times, *text, *rows)


def _events(trace: Trace) -> pl.LazyFrame:
    kinds = {"launches": "launch", "ops": "op", "annotations": "annotation", "frames": "frame"}
    host = [getattr(trace, name).lazy().with_columns(kind=pl.lit(kind)) for name, kind in kinds.items()]
    parts: list[pl.LazyFrame] = [trace.kernels.lazy().with_columns(pl.col("kind").cast(pl.String)), *host]
    columns = {"kind", "start_ns", "duration_ns", "name", "thread", "device", "stream", "correlation"}
    kept = [part.select(sorted(columns & set(part.collect_schema()))) for part in parts]
    return pl.concat([part.with_columns(pl.col("name").cast(pl.String)) for part in kept], how="diagonal")


def _steps(linked: Linked, steps: Steps) -> pl.DataFrame:
    steady = {index for indices in steps.steady_phases().values() for index in indices}
    listed = pl.DataFrame(
        [
            (index, step.name, step.phase.value, step.batch_size, step.tokens, index in steady, step.host_start_ns)
            for index, step in enumerate(steps.steps)
        ],
        schema={
            "step": pl.Int64,
            "name": pl.String,
            "phase": pl.String,
            "batch_size": pl.Int64,
            "tokens": pl.Int64,
            "steady": pl.Boolean,
            "start_ns": pl.Int64,
        },
        orient="row",
    )
    end = pl.col("start_ns") + pl.col("duration_ns")
    work = linked.kernels.select("start_ns", "duration_ns", pl.Series("step", steps.step_of_kernel, dtype=pl.Int64))
    of_step = work.group_by("step").agg(
        pl.col("start_ns").min().alias("gpu_start_ns"),
        end.max().alias("gpu_end_ns"),
        pl.len().cast(pl.Int64).alias("kernels"),
    )
    joined = listed.join(of_step, on="step", how="left", maintain_order="left")
    return joined.with_columns(pl.col("kernels").fill_null(0))


def _rows(name: str, rows: NDArray[np.int64]) -> pl.Series:
    series = pl.Series(name, rows, dtype=pl.Int64)
    return series.set(series == NONE, None)


def _sentence(message: str) -> str:
    """Return the first line of a message, without Polars' plan; an unknown table gets the known ones."""
    first = message.strip().partition("\n")[0].rstrip(".:; ") or "the query cannot be answered"
    return f"{first}; the tables are {', '.join(COLUMNS)}" if first.startswith("relation ") else first
