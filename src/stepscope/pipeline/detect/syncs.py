"""What the host waits for: which calls wait for the GPU, why, and how long it then has nothing to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.detect.driver_calls import driver_calls
from stepscope.pipeline.link import NONE, innermost, parents
from stepscope.pipeline.whatif import time_of
from stepscope.trace import intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.pipeline.detect.idle import Idle
    from stepscope.pipeline.detect.rule import Case
    from stepscope.pipeline.link import Linked

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

READS = ("aten::item", "aten::is_nonzero", "aten::_local_scalar_dense")
"""Ops that do nothing but read a number."""
SIZED_BY_DATA = ("aten::nonzero", "aten::masked_select", "aten::index", "aten::repeat_interleave", "aten::_unique2")
"""Ops that wait because the shape of their result depends on the data."""
_COPIES = ("aten::copy_", "aten::_to_copy", "aten::to", "aten::clone")
_UPLOAD, _DOWNLOAD = "HtoD", "DtoH"
INTEGER_REDUCTION = r"reduce_kernel<.*?ReduceOp<(?:unsigned )?(?:long|int|short)\b"
"""Sums and maxima of integers are of lengths and counts, which the host handed out itself; a token is chosen among
real numbers."""


@dataclass(frozen=True, slots=True)
class Syncs:
    """Calls of the host that waited for the GPU; shapes [waits]."""

    thread: Ints
    start: Ints
    end: Ints
    row: Ints
    """The GPU work waited for: of several streams, what was done last."""
    op: Ints
    """The outermost op that waits for its copy, as a row of `trace.ops`; `NONE`: a call of the program's own."""
    op_name: NDArray[np.str_]
    """Empty without an op."""
    call: NDArray[np.str_]
    step: Ints
    """The step that was running; -1: none."""
    is_upload: Bools
    """Whether it waited for a copy to the GPU."""
    producer: Ints
    """The reduction of integers whose result it read, as a row of the kernels; `NONE`: another, or none."""
    is_needed: Bools
    """Whether it is the one read of its step that a server cannot do without: the token's."""
    idle_ns: Ints
    """How long the GPU had nothing to do afterwards, but for driver calls; 0 where it had work, or had none before.

    Of calls that wait for the same work it is the last one's.
    """
    is_last: Bools
    """Whether no later call waited for the same work: a copy's call may wait, and a synchronisation after it."""

    @classmethod
    def of(cls, case: Case, idle: Idle) -> Syncs:
        """Find the calls that waited, in order of their ends."""
        waits, linked = case.timeline.waits, case.linked
        table = linked.kernels
        begun = table["start_ns"].to_numpy()
        ended = begun + table["duration_ns"].to_numpy()
        row = np.array([max(wait.targets, key=ended.__getitem__) for wait in waits], dtype=np.int64)
        call, thread, start, end = (
            np.array([getattr(wait, name) for wait in waits], dtype=np.int64)
            for name in ("call", "thread", "start", "end")
        )
        op, op_name = _ops(linked, thread, start)
        work = table["name"].gather(row).cast(pl.String)
        is_upload, is_download = (work.str.contains(way, literal=True).to_numpy() for way in (_UPLOAD, _DOWNLOAD))
        before = _before_on_stream(table)[row]
        names = table["name"].gather(np.maximum(before, 0)).cast(pl.String)
        integers = names.str.contains(INTEGER_REDUCTION).to_numpy()
        producer = np.where(is_download & (before >= 0) & integers, before, NONE)
        step = idle.step_at(ended[row] - 1)
        last = _last_for_row(row)
        could_be_token = ~is_upload & (producer == NONE) & ~np.isin(op_name, SIZED_BY_DATA)
        is_needed = could_be_token & np.isin(row, _last_of_step(step, row, could_be_token))
        judged = idle.without(*time_of(driver_calls(linked.trace))[:, 1:].T)
        idle_ns = _idle_after(idle, judged, end, _began(linked, row, start, is_upload | is_download))
        return cls(
            thread,
            start,
            end,
            row,
            op,
            op_name,
            _strings(linked.trace.launches["name"], call),
            step,
            is_upload,
            producer,
            is_needed=is_needed,
            idle_ns=np.bincount(last, idle_ns, minlength=row.size).astype(np.int64),
            is_last=last == np.arange(row.size),
        )

    def hidden(self, case: Case) -> Bools:
        """Tell which waits of the phase a step could do without."""
        in_phase = [step >= 0 and case.steps.steps[step].phase == case.phase for step in self.step.tolist()]
        return np.array(in_phase, dtype=np.bool_) & ~self.is_needed

    def caused(self, case: Case, gone: Ints) -> Ints:
        """Return how much of the idle time after each hidden wait is there because of them, in ns.

        Without them the host is ahead by what it does not spend. If the GPU is idle for longer in a step, that has
        another cause too.

        Args:
            case: the phase.
            gone: shape [n, 3], what the host does not do without them, as `Change.host_gone`.
        """
        freed = intervals.time_covered_before(self.end, *intervals.union(*gone[:, 1:].T))
        idle = np.where(self.hidden(case), self.idle_ns, 0)
        return _no_more_than(np.diff(freed, prepend=0), idle, self.step)


def _ops(linked: Linked, thread: Ints, at: Ints) -> tuple[Ints, NDArray[np.str_]]:
    """Return the outermost of the ops around each call that wait for one copy, and its name."""
    ops = linked.trace.ops
    if not ops.height or not at.size:
        return np.full(at.shape, NONE), np.full(at.shape, "")
    on, start = ops["thread"].to_numpy(), ops["start_ns"].to_numpy()
    end = start + ops["duration_ns"].to_numpy()
    op = innermost(on, start, end, thread, at)
    around = parents(on, start, end)
    while True:
        outer = np.where(op == NONE, NONE, around[op])
        climbs = (outer != NONE) & np.isin(_strings(ops["name"], outer), (*READS, *SIZED_BY_DATA, *_COPIES))
        if not climbs.any():
            return op, np.where(op == NONE, "", _strings(ops["name"], op))
        op = np.where(climbs, outer, op)


def _strings(names: pl.Series, rows: Ints) -> NDArray[np.str_]:
    """Return the names of some rows; what `NONE` stands for has any."""
    return np.array(names.gather(np.maximum(rows, 0)).cast(pl.String).to_list(), dtype=np.str_)


def _before_on_stream(kernels: pl.DataFrame) -> Ints:
    """Return for each row the one before it on its stream; `NONE`: none."""
    stream = kernels.select(pl.struct(pl.col("device", "stream").fill_null(0)).rank("dense")).to_series().to_numpy()
    order = np.argsort(stream, kind="stable")
    before = np.full(order.shape, NONE)
    before[order[1:]] = np.where(np.diff(stream[order]) == 0, order[:-1], NONE)
    return before


def _last_of_step(step: Ints, row: Ints, which: Bools) -> Ints:
    """Return the last row waited for in each step, of some waits in order."""
    chosen = np.flatnonzero(which)[::-1]
    return row[chosen[np.unique(step[chosen], return_index=True)[1]]]


def _last_for_row(row: Ints) -> Ints:
    """Return for each wait the last one for the same work."""
    rows, first_from_behind = np.unique(row[::-1], return_index=True)
    last: Ints = row.size - 1 - first_from_behind[np.searchsorted(rows, row)]
    return last


def _began(linked: Linked, row: Ints, start: Ints, is_copy: Bools) -> Ints:
    """Return when each call began to hold the host up: where it waits for a copy, when that was launched."""
    launch = linked.kernels["launch"].fill_null(NONE).to_numpy()[row]
    launched = linked.trace.launches["start_ns"].to_numpy()[launch]
    return np.where(is_copy & (launch != NONE), np.minimum(launched, start), start)


def _idle_after(idle: Idle, judged: Idle, end: Ints, began: Ints) -> Ints:
    """Return what is judged of the gap in which each wait ends, if it began before it; once, for the first."""
    if not idle.start.size:
        return np.zeros_like(end)
    gap = idle.gap_at(end)
    counts = (gap >= 0) & (began <= idle.start[gap])
    first = np.zeros(end.shape, dtype=np.bool_)
    chosen = np.flatnonzero(counts)
    first[chosen[np.unique(gap[chosen], return_index=True)[1]]] = True
    return np.where(first, judged.between(idle.start[gap], idle.end[gap]), 0)


def _no_more_than(freed: Ints, idle: Ints, step: Ints) -> Ints:
    """Return idle times, cut where those of a step so far would be more than what was freed in it.

    Args:
        freed: shape [waits], in order of time.
        idle: shape [waits].
        step: shape [waits].
    """
    if not step.size:
        return idle
    order = np.argsort(step, kind="stable")
    ahead = freed[order] - idle[order]
    begins = np.concatenate(([True], np.diff(step[order]) != 0))
    number = np.cumsum(begins) - 1
    total = np.cumsum(ahead)
    total -= (total - ahead)[begins][number]  # of each step by itself
    apart = int(np.ptp(np.append(total, 0))) + 1  # keeps what accumulates within a step
    short = np.minimum.accumulate(np.minimum(total, 0) - number * apart) + number * apart
    before = np.where(begins, 0, np.concatenate(([0], short[:-1])))
    cut = np.empty_like(idle)
    cut[order] = idle[order] + short - before
    return cut
