"""What GPU work follows which on its stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.link import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked


def next_on_stream(linked: Linked) -> NDArray[np.int64]:
    """Return for each kernel the row of the one that is next on its stream, or `NONE`; shape [kernels]."""
    queue = pl.struct(pl.col("device", "stream").fill_null(0)).rank("dense")
    stream = linked.kernels.select(queue).to_series().to_numpy()
    order = np.argsort(stream, kind="stable")  # rows are in order of time
    follows = np.full(stream.shape, NONE, dtype=np.int64)
    same = np.diff(stream[order]) == 0
    follows[order[:-1][same]] = order[1:][same]
    return follows
