"""What the ops of a trace launched: their calls grouped by name, shapes, dtypes, kernel and origin.

Every kernel is listed once, under the innermost op that launched it, or under its own name where it has none, as in a
graph's replay. With a glob, each op whose name matches is listed with the kernels launched anywhere below it, such as
`aten::to` with those of the `aten::copy_` inside. Ops that enclose each other then list the same kernels, so that times
of different names do not add up; ops that launched nothing are listed too, without a kernel and with no time.
"""

from __future__ import annotations

import re
from fnmatch import translate
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.attribute.code_owner import INTERNAL
from stepscope.pipeline.attribute.moved import moved_by_op, parse_shapes, parse_types
from stepscope.pipeline.attribute.origins import origins
from stepscope.pipeline.cost import Transfer
from stepscope.pipeline.link import NONE, parents

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps
    from stepscope.trace import Trace

    Ints = NDArray[np.int64]

COLUMNS = pl.Schema(
    {
        "name": pl.String(),
        "input_shapes": pl.List(pl.List(pl.Int64())),
        "dtypes": pl.List(pl.String()),
        "calls": pl.Int64(),
        "calls_per_step": pl.Float64(),
        "time_us_per_step": pl.Float64(),
        "kernel": pl.String(),
        "grid": pl.List(pl.Int64()),
        "bytes_per_call": pl.Int64(),
        "parents": pl.List(pl.String()),
        "source": pl.String(),
        "module": pl.String(),
        "layers": pl.List(pl.Int64()),
    }
)
"""The columns of the list, as `list_ops` documents them."""

_GRID = ("grid_x", "grid_y", "grid_z")
_OP = ("op_name", "input_dims", "input_types")
_WITHIN = ("within_name", "within_dims", "within_types")
_TEXT = (*_OP, "source", "module", *_WITHIN, "kernel_name")
_SAME = (*_OP, "path", "source", "module", *_WITHIN, "kernel_name", *_GRID, "bytes")


def list_ops(
    linked: Linked, steps: Steps, name: str | None = None, internal: Collection[str] = INTERNAL
) -> pl.DataFrame:
    """Return what ops launched, in groups of the same name, shapes, dtypes, kernel, grid, parents, source and module.

    Args:
        linked: the trace.
        steps: its steps.
        name: a glob of op names, and of names of kernels without an op; case counts.
        internal: packages whose functions are not your code, besides the standard library.

    Returns:
        A row a group, longest time per step first:

        - `name`: of the op, or of the kernel where no op launched it;
        - `input_shapes`: a list an input, empty for what is no tensor; null: not recorded;
        - `dtypes`: an item an input, null for what is no tensor; null: not recorded;
        - `calls`: of the op in the whole recording, or runs of a kernel without an op. An op that launches several
          kernels has a row for each;
        - `calls_per_step`, `time_us_per_step`: medians over the steady steps of the phase in which the group takes the
          most time; the time is the summed duration of what was launched, in µs. 0 for what is in fewer than half of
          the steps; null where the recording has no steps with GPU work;
        - `kernel`, `grid`: what ran, and its blocks in x, y, z; null: nothing, or not recorded;
        - `bytes_per_call`: bytes that one run of the kernel moves: recorded for a memcpy or memset, read and written
          for a copy or cast whose shapes were recorded; null for any other kernel;
        - `parents`: names of the ops around the op, outermost first;
        - `source`: `file:line function` of the innermost Python function around that is your code, or of any where none
          is; its first line, or where it was when recording began, or, as recorded in 2021, where it made the call;
          null: no stacks were recorded;
        - `module`: the class of the innermost module around; null: none, or not recorded;
        - `layers`: the numbers of the layers that the calls are in; null: not certain, or not recorded.
    """
    parent = _parents(linked.trace)
    op, kernel = _launched(linked) if name is None else _launched_below(linked, parent, name)
    table = _described(linked, steps, parent, op, kernel, internal)
    layers = pl.col("layer").drop_nulls().unique().sort()
    groups = table.group_by(_SAME, maintain_order=True).agg("op", "kernel", "step", "ns", layers.alias("layers"))
    groups = groups.with_row_index("group")
    rows = groups.select("group", "op", "kernel", "step", "ns").explode("op", "kernel", "step", "ns")
    # of an op nested in one of its own group, the kernels are the group's only once
    rows = rows.with_columns(
        pl.coalesce("op", "kernel").alias("call"),
        pl.when(pl.col("kernel").is_first_distinct().over("group")).then("ns").fill_null(0).alias("ns"),
    )
    totals = rows.group_by("group").agg(pl.col("call").n_unique().alias("calls"), pl.col("ns").sum())
    figures = totals.join(_per_step(rows, steps), on="group", how="left")
    if steps.steady_phases():
        figures = figures.with_columns(pl.col("calls_per_step", "time_us_per_step").fill_null(0.0))
    described = groups.with_columns(pl.col("op").list.first(), pl.col(_TEXT).cast(pl.String)).drop(
        "kernel", "step", "ns"
    )
    ordered = described.join(figures, on="group").sort(
        "time_us_per_step", "ns", "group", descending=[True, True, False], nulls_last=True
    )
    op_names = linked.trace.ops["name"]
    return pl.DataFrame(
        [_row(group, parent, op_names) for group in ordered.iter_rows(named=True)], schema=COLUMNS, orient="row"
    )


def nothing_listed(name: str | None) -> str:
    """Return why a list is empty, and what to ask instead."""
    if name is None:
        return "no GPU work was recorded; a name, such as '*', lists ops without"
    nothing = f"no op, and no kernel without an op, is named {name}"
    return nothing if "*" in name else f"{nothing}; '*{name}*' looks inside names"


def _parents(trace: Trace) -> Ints:
    start = trace.ops["start_ns"].to_numpy()
    return parents(trace.ops["thread"].to_numpy(), start, start + trace.ops["duration_ns"].to_numpy())


def _launched(linked: Linked) -> tuple[Ints, Ints]:
    """Return every kernel once, with its innermost op: rows of ops, or `NONE`, and rows of kernels."""
    return linked.kernels["op"].fill_null(NONE).to_numpy(), np.arange(linked.kernels.height)


def _launched_below(linked: Linked, parent: Ints, glob: str) -> tuple[Ints, Ints]:
    """Return each op that matches with each kernel launched below it, or with `NONE` where there is none."""
    matching = _matches(linked.trace.ops["name"], glob)
    op, kernel = _launched(linked)
    alone = (op == NONE) & _matches(linked.kernels["name"], glob)
    found = [(op[alone], kernel[alone])]
    launched_something = np.zeros(matching.shape, dtype=np.bool_)
    while kernel.size:  # one op further out each time
        inside = op != NONE
        op, kernel = op[inside], kernel[inside]
        launched_something[op] = True
        found.append((op[matching[op]], kernel[matching[op]]))
        op = parent[op]
    idle = np.flatnonzero(matching & ~launched_something)
    found.append((idle, np.full(idle.shape, NONE)))
    return np.concatenate([ops for ops, _ in found]), np.concatenate([kernels for _, kernels in found])


def _matches(names: pl.Series, glob: str) -> NDArray[np.bool_]:
    matches = re.compile(translate(glob)).match
    chosen = [name for name in names.unique().cast(pl.String) if matches(name)]
    return names.cast(pl.String).is_in(chosen).to_numpy()


def _described(  # noqa: PLR0913, PLR0917 -- what a row of the list is made of
    linked: Linked, steps: Steps, parent: Ints, op: Ints, kernel: Ints, internal: Collection[str]
) -> pl.DataFrame:
    """Return the pairs of op and kernel with all that tells groups apart, the step of each, and the kernel's time."""
    trace = linked.trace
    shapes = pl.col("name").alias("op_name"), pl.col("input_dims"), pl.col("input_types")
    ops = trace.ops.select(*shapes, pl.Series("path", _paths(trace, parent))).with_row_index("op")
    within = trace.ops.select(pl.col("name", "input_dims", "input_types")).with_row_index("within")
    kernels = linked.kernels.with_row_index("kernel").select(
        "kernel",
        pl.col("name").alias("kernel_name"),
        *_GRID,
        "bytes",
        pl.col("op").cast(pl.UInt32).alias("within"),
        pl.col("duration_ns").alias("ns"),
    )
    pairs = pl.DataFrame(
        {
            "op": _rows(op),
            "kernel": _rows(kernel),
            "step": _step(linked, steps, op, kernel),
            **origins(linked, parent, op, kernel, internal),
        }
    )
    return (
        pairs.join(ops, on="op", how="left", maintain_order="left")
        .join(kernels, on="kernel", how="left", maintain_order="left")
        .join(
            within.rename(dict(zip(("name", "input_dims", "input_types"), _WITHIN, strict=True))),
            on="within",
            how="left",
            maintain_order="left",
        )
    )


def _rows(numbers: Ints) -> pl.Series:
    series = pl.Series(numbers, dtype=pl.Int64)
    return series.set(series == NONE, None).cast(pl.UInt32)


def _step(linked: Linked, steps: Steps, op: Ints, kernel: Ints) -> Ints:
    """Return the step of each kernel, or of each op that launched none."""
    if not op.size:
        return op
    of_kernel = steps.step_of_kernel[kernel] if steps.step_of_kernel.size else op
    of_op = steps.at(linked.trace.ops["start_ns"].to_numpy())
    return np.where(kernel != NONE, of_kernel, of_op[op] if of_op.size else NONE)


def _paths(trace: Trace, parent: Ints) -> Ints:
    """Number the chains of ops around each op, so that equal names have the same number."""
    nothing = parent.size
    name = np.append(trace.ops["name"].to_physical().cast(pl.Int64).to_numpy() + 1, 0)
    above = np.append(np.where(parent == NONE, nothing, parent), nothing)
    path: Ints = name[above]
    while (above != nothing).any():  # twice as long chains each time
        _, path = np.unique(path * (path.max() + 1) + path[above], return_inverse=True)
        above = above[above]
    return path[:-1]


def _per_step(rows: pl.DataFrame, steps: Steps) -> pl.DataFrame:
    """Return calls and µs per step of each group, in the phase in which it takes the most time."""
    steady = pl.DataFrame(
        [
            (index, number, len(indices))
            for number, indices in enumerate(steps.steady_phases().values())
            for index in indices
        ],
        schema={"step": pl.Int64, "phase": pl.Int64, "of": pl.Int64},
        orient="row",
    )
    per_step = rows.group_by("group", "step").agg(pl.col("call").n_unique().cast(pl.Int64), pl.col("ns").sum())
    per_phase = per_step.join(steady, on="step").group_by("group", "phase").agg("call", "ns", pl.col("of").first())
    longest = per_phase.sort(
        pl.col("ns").list.sum(), pl.col("call").list.sum(), "phase", descending=[True, True, False]
    ).unique("group", keep="first", maintain_order=True)
    return longest.select(
        "group", _median("call").alias("calls_per_step"), (_median("ns") / 1e3).alias("time_us_per_step")
    )


def _median(column: str) -> pl.Expr:
    """Return the median of `of` values, of which those that are not in the list are 0."""
    values = pl.col(column).list.sort()
    zeros = pl.col("of") - values.list.len().cast(pl.Int64)

    def value(place: pl.Expr) -> pl.Expr:
        return pl.when(place >= zeros).then(values.list.get(place - zeros, null_on_oob=True)).otherwise(0)

    return (value((pl.col("of") - 1) // 2) + value(pl.col("of") // 2)) / 2


def _row(group: dict[str, object], parent: Ints, op_names: pl.Series) -> tuple[object, ...]:
    shapes, dtypes = parse_shapes(_text(group["input_dims"])), parse_types(_text(group["input_types"]))
    grid = [group[column] for column in _GRID]
    op = group["op"]
    return (
        group["op_name"] if op is not None else group["kernel_name"],
        shapes,
        dtypes,
        group["calls"],
        group["calls_per_step"],
        group["time_us_per_step"],
        group["kernel_name"],
        None if None in grid else grid,
        group["bytes"] if group["bytes"] is not None else _moved_bytes(group),
        [] if not isinstance(op, int) else _names(op, parent, op_names),
        group["source"],
        group["module"],
        group["layers"] or None,
    )


def _moved_bytes(group: dict[str, object]) -> int | None:
    """Return the bytes that a copy or cast reads and writes, by the shapes of the op that launched it."""
    op, dims, types = (_text(group[column]) for column in _WITHIN)
    moved = None if op is None else moved_by_op(op, parse_shapes(dims), parse_types(types))
    if moved is None or moved.source_dtype is None or moved.target_dtype is None:
        return None
    return Transfer(moved.elements_low, moved.source_dtype, moved.target_dtype).bytes


def _names(op: int, parent: Ints, op_names: pl.Series) -> Sequence[str]:
    names: list[str] = []
    while (op := int(parent[op])) != NONE:
        names.append(op_names[op])
    return names[::-1]


def _text(value: object) -> str | None:
    return None if value is None else str(value)
