"""The host's ops that go with GPU work that is gone: those that launched nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.link import NONE, parents
from stepscope.pipeline.whatif import Change, host_time, only_launched, time_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked


def gone_with_ops(linked: Linked, rows: NDArray[np.bool_]) -> Change:
    """Return the change that takes GPU work out, shape [kernels], its launches, and the ops that did nothing else."""
    return with_ops_gone(linked, Change(rows, host_gone=host_time(linked, only_launched(linked, rows))))


def with_ops_gone(linked: Linked, change: Change) -> Change:
    """Return a change after which the ops that launched nothing but removed work are not called either."""
    ops = linked.trace.ops
    op = linked.kernels["op"].cast(pl.Int64).fill_null(NONE).to_numpy()
    removed = change.removed[op != NONE]
    op = op[op != NONE]
    if not removed.any():
        return change
    start = ops["start_ns"].to_numpy()
    parent = parents(ops["thread"].to_numpy(), start, start + ops["duration_ns"].to_numpy())
    launched, gone = np.zeros(ops.height, dtype=np.int64), np.zeros(ops.height, dtype=np.int64)
    while op.size:  # from each kernel's op outwards: as often as ops are nested
        np.add.at(launched, op, 1)
        np.add.at(gone, op, removed)
        outer = parent[op]
        op, removed = outer[outer != NONE], removed[outer != NONE]
    only = (gone > 0) & (gone == launched)
    return change | Change(np.zeros_like(change.removed), host_gone=time_of(ops.filter(pl.Series(only))))
