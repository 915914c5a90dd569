"""Which launch started a kernel, and which op called that launch: by correlation and by nesting in time.

`External id` is not used: before October 2024 it was often the kernel's correlation id, which collides with
unrelated ops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.trace import Trace

    Ints = NDArray[np.int64]

NONE = -1
"""Row index that stands for "no row" inside arrays; in tables it is null."""


_OP_FACTS = ("op_name", "input_dims", "input_types")


@dataclass(frozen=True, slots=True)
class Linked:
    """A trace whose kernels know their launch and their op."""

    trace: Trace
    kernels: pl.DataFrame
    """`trace.kernels` and the columns `launch`, `op` and `donor_op`.

    They are row numbers in `trace.launches`, `trace.ops` and `donor.ops`, or null.
    """
    donor: Trace | None = None
    """Another trace of the same model, which tells the ops of kernels that a graph replayed here; None without one."""

    def op_of(self, row: int) -> tuple[Trace, int] | None:
        """Return the trace that tells a kernel's op, and the row in its `ops`; None where no op is known."""
        op, donor_op = self.kernels.select("op", "donor_op").row(row)
        if self.donor is not None and donor_op is not None:
            return self.donor, donor_op
        return None if op is None else (self.trace, op)

    def with_op_facts(self, kernels: pl.DataFrame) -> pl.DataFrame:
        """Return some of the kernels with the columns `op_name`, `input_dims` and `input_types` of their ops."""
        known = kernels.join(_op_facts(self.trace, "op"), on="op", how="left", maintain_order="left")
        if self.donor is None:
            return known
        donated = kernels.join(_op_facts(self.donor, "donor_op"), on="donor_op", how="left", maintain_order="left")
        is_joined = kernels["donor_op"].is_not_null()
        return known.with_columns(donated[fact].zip_with(is_joined, known[fact]) for fact in _OP_FACTS)


def link(trace: Trace) -> Linked:
    """Find each kernel's launch (same correlation) and the innermost op that encloses that launch on its thread."""
    launch = _launch_of_kernel(trace)
    op_of_launch = find_op_of_launch(trace)
    op = np.where(launch == NONE, NONE, op_of_launch[launch]) if op_of_launch.size else np.full_like(launch, NONE)
    kernels = trace.kernels.with_columns(
        _row_numbers("launch", launch), _row_numbers("op", op), pl.lit(None, pl.Int64).alias("donor_op")
    )
    if trace.launches.height:  # some versions of ROCm tell the bytes of a copy on the host's row only
        told = trace.launches["bytes"].gather(kernels["launch"].fill_null(0))
        own = pl.col("kind") != "kernel"
        known = pl.col("bytes").fill_null(pl.when(own & pl.col("launch").is_not_null()).then(told))
        kernels = kernels.with_columns(known)
    return Linked(trace, kernels)


def find_op_of_launch(trace: Trace) -> Ints:
    """Return for each launch the row of the innermost op that encloses it on its thread, or `NONE`."""
    return innermost(
        trace.ops["thread"].to_numpy(),
        trace.ops["start_ns"].to_numpy(),
        (trace.ops["start_ns"] + trace.ops["duration_ns"]).to_numpy(),
        trace.launches["thread"].to_numpy(),
        trace.launches["start_ns"].to_numpy(),
    )


def innermost(thread: Ints, start: Ints, end: Ints, at_thread: Ints, at: Ints) -> Ints:
    """Return for each point the row of the innermost interval that holds it, or `NONE`.

    Args:
        thread: shape [n], the thread of each interval.
        start: shape [n].
        end: shape [n]; intervals of one thread are nested or apart, else the earlier is cut off. One of no length
            counts as 1 ns.
        at_thread: shape [m], the thread of each point.
        at: shape [m], the time of each point.

    The depth of a point is the number of intervals open there; the innermost one is the latest to have begun among
    those of that depth. Threads are laid one after another on a single axis, so that one search serves all.
    """
    if start.size == 0:
        return np.full(at.shape, NONE, dtype=np.int64)
    times = np.concatenate((start, np.maximum(end, start + 1), at))
    known, rank = np.unique(times, return_inverse=True)  # only their order matters, and ranks fit in 64 bits
    start, end, at = np.split(
        rank + np.concatenate((thread, thread, at_thread)).astype(np.int64) * known.size, (start.size, 2 * start.size)
    )

    found = _around(start, end, at)
    held = found != NONE
    if (end[found[held]] <= at[held]).any():
        found = _around(start, _cut_apart(start, end), at)
    return found


def _around(start: Ints, end: Ints, at: Ints) -> Ints:
    order = np.lexsort((-end, start))
    ordered_start = start[order]
    ends = np.sort(end)
    depth = np.arange(order.size) - np.searchsorted(ends, ordered_start, side="right")
    begun = np.searchsorted(ordered_start, at, side="right")
    depth_at = begun - np.searchsorted(ends, at, side="right") - 1
    return _latest_of_depth(order, depth, depth_at, begun)


def parents(thread: Ints, start: Ints, end: Ints) -> Ints:
    """Return for each interval the row of the innermost other one that holds it, or `NONE`.

    Args:
        thread: shape [n], the thread of each interval.
        start: shape [n].
        end: shape [n]; as `innermost` takes them. Of two that are equal, the first holds the second.
    """
    if start.size == 0:
        return np.zeros(0, dtype=np.int64)
    known, rank = np.unique(np.concatenate((start, np.maximum(end, start + 1))), return_inverse=True)
    start, end = np.split(rank + np.concatenate((thread, thread)).astype(np.int64) * known.size, 2)
    found = _around_each(start, end)
    held = found != NONE
    if (end[found[held]] < end[held]).any():
        found = _around_each(start, _cut_apart(start, end))
    return found


def _around_each(start: Ints, end: Ints) -> Ints:
    order = np.lexsort((-end, start))
    depth = np.arange(order.size) - np.searchsorted(np.sort(end), start[order], side="right")
    found = np.empty(order.size, dtype=np.int64)
    found[order] = _latest_of_depth(order, depth, depth - 1, np.arange(order.size))
    return found


def _cut_apart(start: Ints, end: Ints) -> Ints:
    """Return the ends of intervals of which one that overlaps a later one is cut off where that begins.

    Times that were rounded make calls that follow each other overlap. It takes a loop, so it is for such traces only.
    """
    cut = end.tolist()
    starts = start.tolist()
    still_open: list[int] = []
    for row in np.lexsort((-end, start)).tolist():
        while still_open and cut[still_open[-1]] < cut[row]:
            before = still_open.pop()
            cut[before] = min(cut[before], starts[row])
        still_open.append(row)
    return np.array(cut, dtype=np.int64)


def _latest_of_depth(order: Ints, depth: Ints, wanted: Ints, before: Ints) -> Ints:
    """Return the row of the latest interval of each wanted depth among the first so many in order; `NONE` below 0."""
    size = order.size + 1
    keys = depth * size + np.arange(order.size)
    by_key = np.argsort(keys)
    found = np.searchsorted(keys[by_key], wanted * size + before, side="left") - 1
    return np.where(wanted < 0, NONE, order[by_key[np.maximum(found, 0)]])


def _launch_of_kernel(trace: Trace) -> Ints:
    launches = trace.launches.with_row_index("launch").select("correlation", "launch").drop_nulls()
    unique = launches.unique("correlation", keep="first")
    joined = trace.kernels.select("correlation").join(unique, on="correlation", how="left", maintain_order="left")
    return joined["launch"].cast(pl.Int64).fill_null(NONE).to_numpy()


def _op_facts(trace: Trace, row: str) -> pl.DataFrame:
    ops = trace.ops.select(pl.col("name").alias("op_name"), "input_dims", "input_types")
    return ops.with_row_index(row).with_columns(pl.col(row).cast(pl.Int64))


def _row_numbers(name: str, rows: Ints) -> pl.Series:
    series = pl.Series(name, rows)
    return series.set(series == NONE, None)
