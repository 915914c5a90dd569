"""Steps by the repeating sequence of kernels, where neither annotations nor graphs tell them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.steps.repeats import find_repeats
from stepscope.pipeline.steps.step import Phase, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked

    Ints = NDArray[np.int64]

LAUNCHED = 0.5
"""So many of the kernels must have a launch, else they are taken in the order in which the GPU ran them."""
_ON_GRID = ("name", "grid_x", "grid_y", "grid_z")


def sequence_steps(linked: Linked) -> tuple[tuple[Step, ...], Ints] | None:
    """Return the steps, and the step of each kernel or -1; None where the kernels tell none.

    The kernels are taken in order of launch. Of a recording of the GPU only, the busiest stream tells the steps.
    """
    kernels = linked.kernels.with_row_index("kernel")
    launched = kernels.drop_nulls("launch")
    by_launch = launched.height > LAUNCHED * kernels.height
    if by_launch:
        begun = linked.trace.launches["start_ns"][launched["launch"]]
        rows = launched.with_columns(begun.alias("begun_ns")).sort("begun_ns", "start_ns")
        since_last = rows["begun_ns"].diff().fill_null(0).to_numpy()
    else:
        rows = kernels.with_columns(pl.col("start_ns").alias("begun_ns")).sort("start_ns")
        ended = (pl.col("start_ns") + pl.col("duration_ns")).cum_max().shift(1)
        since_last = rows.select((pl.col("start_ns") - ended).fill_null(0))["start_ns"].to_numpy()
    telling = np.arange(rows.height) if by_launch else np.flatnonzero(on_busiest_stream(rows))
    symbols = numbered(rows)[telling]
    names = rows["name"].to_physical().cast(pl.Int64).to_numpy()[telling]
    found = find_repeats(names, symbols, since_last[telling])
    if found is None:
        return None
    begin, stop = telling[found[0]], np.append(telling, rows.height)[found[1]]
    step = np.searchsorted(begin, np.arange(rows.height), side="right") - 1
    step[stop:] = -1
    of_kernel = np.full(kernels.height, -1)
    of_kernel[rows["kernel"].to_numpy()] = step
    starts = rows["begun_ns"].to_numpy()[begin].tolist()
    return tuple(Step("kernel sequence", Phase.UNKNOWN, None, start) for start in starts), of_kernel


def on_busiest_stream(kernels: pl.DataFrame) -> pl.Series:
    """Return which kernels run on the stream that runs the most of them."""
    queue = kernels.select(pl.struct("device", "stream").rank("dense").alias("queue"))["queue"]
    return queue == int(np.bincount(queue).argmax())


def numbered(kernels: pl.DataFrame) -> Ints:
    """Return a number for each kernel, the same for those of the same name and grid."""
    like = kernels.select(pl.struct(pl.col("name").to_physical(), *_ON_GRID[1:]).hash().alias("like"))["like"]
    return np.unique(like.to_numpy(), return_inverse=True)[1]
