"""Chains of kernels that become one, and the launches that go with work that is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.whatif.changes import Change, time_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]


def only_launched(linked: Linked, removed: Bools) -> Bools:
    """Tell which calls of the host launched some of the removed work and nothing else, shape [launches]."""
    launch = linked.kernels["launch"].cast(pl.Int64).fill_null(-1).to_numpy()
    calls = np.zeros(linked.trace.launches.height, dtype=np.bool_)
    calls[launch[removed & (launch >= 0)]] = True
    calls[launch[~removed & (launch >= 0)]] = False
    return calls


def host_time(linked: Linked, calls: Bools) -> Ints:
    """Return the time of calls of the host, as `Change.host_gone` takes it."""
    return time_of(linked.trace.launches.filter(pl.Series(calls, dtype=pl.Boolean)))


def chains(linked: Linked, rows: Bools, step_of_kernel: Ints) -> Ints:
    """Number the chains of these rows: work that follows one another on a stream in one step; -1 for other rows."""
    kernels = linked.kernels
    stream = kernels.select(pl.struct(pl.col("device", "stream").fill_null(0)).rank("dense")).to_series().to_numpy()
    order = np.argsort(stream, kind="stable")
    mine = rows[order]
    goes_on = mine[1:] & mine[:-1] & (np.diff(stream[order]) == 0) & (np.diff(step_of_kernel[order]) == 0)
    begins = mine & np.concatenate(([True], ~goes_on))[: mine.size]
    chain = np.empty(rows.shape, dtype=np.int64)
    chain[order] = np.where(mine, np.cumsum(begins) - 1, -1)
    return chain


def fused(linked: Linked, chain: Ints) -> Change:
    """Return the change by which each chain becomes one kernel, which takes as long as its longest took.

    Args:
        linked: the trace.
        chain: shape [kernels]: the number of the chain that each belongs to, or -1.
    """
    duration = linked.kernels["duration_ns"].to_numpy()
    mine = np.flatnonzero(chain >= 0)
    longest_first = mine[np.lexsort((-duration[mine], chain[mine]))]
    opens = np.concatenate(([True], np.diff(chain[longest_first]) != 0))[: mine.size]
    removed = np.zeros(chain.shape, dtype=np.bool_)
    removed[longest_first[~opens]] = True
    return Change(removed, host_gone=host_time(linked, only_launched(linked, removed)))
