"""The host waits for the GPU where it need not, and the GPU has nothing to do afterwards.

## What it looks like
A runtime call that waits (`cudaStreamSynchronize`, a copy of pageable memory) inside `item()`, `nonzero()`, boolean
indexing, `repeat_interleave` or `to(device)`, and a gap on the GPU that begins before the call returns. Only that gap
counts: during the call itself the GPU works. Nor does more of it count than a step's calls took the host, by which it
would be ahead without them: what is left has another cause, such as what the host prepares (`host-gap`).

## Why it happens
A number that the host could know is read back from the GPU (the longest length, a count), a tensor is made from a list
and sent from pageable memory, or the shape of a result depends on data. The host cannot run ahead any more, so whatever
it does next, launches included, the GPU waits for.

## What looks the same and is harmless
A wait while the GPU has more work queued: however long, nothing is lost. One read a step of the token that was chosen,
which a server without overlapped scheduling needs. A copy that waits while the GPU has nothing to do anyway.

## Control
Put a constant in the place of the number that is read, or leave the copy out, at the call that takes most, and measure
without the profiler; if the step does not get shorter, the GPU had work all along.

## Fixes
- code: Build the tensor in pinned memory and send it with `non_blocking=True`, or keep it on the GPU.
- code: Give the result a size that does not depend on the data (`output_size=` of `repeat_interleave`, `torch.where` in
  place of boolean indexing, a padded buffer).
- code: Keep the number on the host too, or use it where it is, on the GPU; read it once a step at most (overlapped
  scheduling hides that).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope import units
from stepscope.document import Confidence, Evidence, Group
from stepscope.pipeline.detect.explanation import fixes_of
from stepscope.pipeline.detect.idle import Idle, per_step
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.detect.syncs import READS, SIZED_BY_DATA, Syncs
from stepscope.pipeline.link import NONE
from stepscope.pipeline.steps import FoundBy
from stepscope.pipeline.whatif import MOST_ERROR, Change, time_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from stepscope.document import Fix

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

PINNED, SIZED, KEPT_ON_HOST = fixes_of(__doc__)
MIN_SHARE = 0.01
"""Less idle time than this after waits, or less to gain, is not worth a reader's time."""

ASSUMPTION = (
    "the host does not wait there: it knows the numbers, and sends from pinned memory; the other launches stay as"
    " recorded, profiler overhead included"
)
NO_STACKS = Unchecked(
    "which line of code waits: no Python stacks around it", "record with with_stack=True; then --source DIR"
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find waits that a step could do without and after which the GPU is idle."""
    if not case.complete or case.steps.found_by is FoundBy.RECORDING or not case.timeline.waits:
        return
    idle = Idle.of(case)
    syncs, steps = Syncs.of(case, idle), idle.timed(case.step_indices)
    hidden = syncs.hidden(case)
    change = _change(case, syncs, hidden)
    caused = syncs.caused(case, change.host_gone)
    idle_us = per_step(syncs.step[hidden], caused[hidden], steps) / 1e3
    if not idle_us or idle_us < MIN_SHARE * case.measured.step_us:
        return
    if case.replay_error <= MOST_ERROR:
        gain_us = case.measured.step_us - case.timeline.replay(case.step_indices, change).step_us
        if gain_us < MIN_SHARE * case.measured.step_us:
            return
    counted = hidden & syncs.is_last
    groups, largest = _groups(case, syncs, caused, counted, steps)
    op, wait_ns = int(syncs.op[largest]), syncs.end - syncs.start
    origin = Origin.at(case, None if op == NONE else (case.linked.trace, op), syncs.row[largest : largest + 1])
    if origin.stack is None:
        yield NO_STACKS
    calls = per_step(syncs.step[counted], np.ones(int(counted.sum()), dtype=np.int64), steps)
    wait_us = per_step(syncs.step[hidden], wait_ns[hidden], steps) / 1e3
    yield Cause(
        title=f"The GPU is idle for {units.time(idle_us)} a step after {_waits(calls)} that the host need not make",
        confidence=Confidence.HIGH if op != NONE and syncs.is_upload[largest] else Confidence.MEDIUM,
        notes=list(_notes(syncs, hidden, wait_us)),
        time_us_per_step=idle_us,
        evidence=Evidence(
            op=str(syncs.op_name[largest]) or None,
            kernel=str(case.linked.kernels["name"][int(syncs.row[largest])]),
            host_call=str(syncs.call[largest]),
            calls_per_step=groups[0].calls_per_step,
            wait_us_per_step=wait_us,
            groups=groups,
        ),
        change=change,
        assumption=ASSUMPTION,
        origin=origin,
        fixes=list(_fixes(syncs, hidden)),
        is_idle=True,
    )


def _change(case: Case, syncs: Syncs, hidden: Bools) -> Change:
    """Return the change by which the waits are gone, and with a read all that was done for it."""
    kernels, trace = case.linked.kernels, case.linked.trace
    is_read = hidden & ~syncs.is_upload & (np.isin(syncs.op_name, READS) | (syncs.producer != NONE))
    producers = syncs.producer[is_read & (syncs.producer != NONE)]
    removed = np.zeros(kernels.height, dtype=np.bool_)
    removed[producers] = True
    removed[syncs.row[is_read]] = True
    made_by = kernels["op"].gather(producers).drop_nulls().to_numpy()
    read_by = syncs.op[is_read & (syncs.op != NONE)]
    waits = np.stack((syncs.thread, syncs.start, syncs.end), axis=1)[hidden]
    ops = trace.ops.select(pl.col("thread").cast(pl.Int64), "start_ns", "duration_ns")
    return Change(
        removed, host_gone=np.concatenate((waits, time_of(ops[np.unique(np.concatenate((made_by, read_by)))])))
    )


def _groups(case: Case, syncs: Syncs, caused: Ints, counted: Bools, steps: list[int]) -> tuple[list[Group], int]:
    """Return the waits by call, op and copy, those with most idle time first, and one of the first group."""
    work = case.linked.kernels["name"].cast(pl.String).gather(syncs.row).to_numpy().astype(str)
    kinds = np.stack((syncs.call, syncs.op_name, work), axis=1)
    names, first, number = np.unique(kinds[counted], axis=0, return_index=True, return_inverse=True)
    found = []
    for kind, (call, op, copy) in enumerate(names.tolist()):
        mine = np.flatnonzero(counted)[number.reshape(-1) == kind]
        idle_us = per_step(syncs.step[mine], caused[mine], steps) / 1e3
        calls = per_step(syncs.step[mine], np.ones(mine.size, dtype=np.int64), steps)
        where = f"{call} in {op}" if op else call
        group = Group(
            kernel=f"{where}: {copy}", tensor=None, shape=None, calls_per_step=calls, time_us_per_step=idle_us
        )
        found.append((group, int(np.flatnonzero(counted)[first[kind]])))
    found.sort(key=lambda pair: -pair[0].time_us_per_step)
    return [group for group, _ in found], found[0][1]


def _waits(calls: float) -> str:
    return "a wait" if calls == 1 else f"{units.count(calls)} waits"


def _notes(syncs: Syncs, hidden: Bools, wait_us: float) -> Iterator[str]:
    yield (
        f"The host waits for {units.time(wait_us)} a step in these calls. That is not what is lost: the GPU works"
        " meanwhile, and only the gaps that follow count."
    )
    if (syncs.producer[hidden] != NONE).any():
        yield "What is read comes out of a reduction of integers: a length or a count, not a token."
    if syncs.is_needed.any():
        yield "One wait a step is taken to be for the token, which the host needs; it is not counted."


def _fixes(syncs: Syncs, hidden: Bools) -> Iterator[Fix]:
    if syncs.is_upload[hidden].any():
        yield PINNED
    if np.isin(syncs.op_name[hidden], SIZED_BY_DATA).any():
        yield SIZED
    if (hidden & ~syncs.is_upload & ~np.isin(syncs.op_name, SIZED_BY_DATA)).any():
        yield KEPT_ON_HOST


RULE = Rule("hidden-sync", __doc__, check, needs=("GPU kernels", "launches on the host", "several steps"))
