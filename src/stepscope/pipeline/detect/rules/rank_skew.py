"""Ranks wait for each other at collectives, because one of them is late.

## What it looks like
The same collective, call by call: on all ranks it ends at the same moment, but it does not start so. The kernel of the
rank that came first is the longest, that of the rank that came last is as short as the transfer. So the rank with the
long collectives is not the slow one: it waits.

## Why it happens
One rank has more to do between two collectives (more tokens for its experts, a longer context, a part of the model that
the others do not have), does it slower (a GPU that is shared, throttled or set to another clock), or its host launches
later. All others wait at every collective for it.

## What looks the same and is harmless
The clocks of two hosts are offset, so that all calls seem late by as much: they are aligned here by the ends of the
calls, and what is left is no lateness. One rank's trace cannot tell waiting from transfer. Nor do ranks ever arrive
together to the last µs. Recorded eagerly, hosts that the profiler slows differently wait for each other too.

## Control
Swap the late rank's GPU and host process with another's. If the lateness moves with its work, the work is unequal; if
it stays with the GPU or the host, that one is slow.

## Fixes
- configuration: Give the ranks equal work: balance experts (SGLang, vLLM: `--enable-eplb`) and requests.
- configuration: Give them equal speed: the same clocks and power limits, no other process on the late rank's GPU, cores
  of its own for its host process, decode in CUDA graphs.
- code: Find what the late rank does longer: `stepscope compare FIRST_RANK LATE_RANK`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope import units
from stepscope.document import Confidence, Evidence, RankArrival
from stepscope.pipeline.detect.casts import covered_us_per_step
from stepscope.pipeline.detect.lateness import on_time
from stepscope.pipeline.detect.rule import Case, Cause, Excluded, RanksCase, RanksCause, Rule, Unchecked
from stepscope.pipeline.ranks import Arrive, collectives, sends

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MIN_SHARE = 0.02
"""Waiting that takes less of a step is what ranks always wait: on two H200 in a graph it is 0.4%."""
MIN_RESIDUALS = 3.0
"""Lateness must be so many times what the ends of the same calls lie apart; less is no more than the clocks' error."""
NOTABLE_SHARE = 0.1
"""Collectives that take less of a step are not worth a question: without any waiting it would hardly be shorter."""

ASSUMPTION = (
    "late ranks arrive at each collective with the median of the ranks, at best with the first, all other work stays as"
    " recorded, and the other ranks' steps change alike"
)
LAUNCHED_SINGLY = (
    "The collectives were launched one by one, so that a late rank's host may be the reason, slowed by the profiler"
    " itself. Record decode in CUDA graphs to tell it from late GPU work."
)
ONE_RANK = Unchecked(
    "whether ranks wait for each other: the trace is of one rank, and its collectives hold waiting and transfer",
    "record all ranks of the run and give their traces together: stepscope diagnose RANK0 RANK1 …, or their folder",
)

SENT = Unchecked(
    "whether ranks wait for each other in NCCL's SendRecv: what one rank sends to another has no call in the others to"
    " be compared with, and where all send to all the trace does not say so",
    "record an all-to-all eagerly, where torch names it; of a pipeline compare two stages' steps (stepscope compare)",
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Say that one rank cannot tell, where its collectives take a notable part of the step."""
    of_all, of_two = collectives(case.groups, case.linked), sends(case.groups, case.linked)
    if of_two and covered_us_per_step(case, of_two) >= NOTABLE_SHARE * case.measured.step_us > 0:
        yield SENT
    if case.alone and of_all and covered_us_per_step(case, of_all) >= NOTABLE_SHARE * case.measured.step_us > 0:
        yield ONE_RANK


def check_ranks(ranks: RanksCase) -> Iterator[RanksCause | Excluded | Unchecked]:
    """Find ranks that arrive late, so that others wait."""
    skew, members, waiting = ranks.skew, ranks.calls.ranks, ranks.waiting
    arrival, kernel_us, wait_us = skew.arrival_us(), skew.kernel_us(), float(skew.wait_us_per_step()[waiting])
    latest_us, residual_us = float(np.nanmax(arrival)), ranks.calls.residual_us
    agree = f"Ends of the same calls agree to {units.time(residual_us)} once the ranks' clocks are aligned by them."
    if wait_us < MIN_SHARE * ranks.step_us or latest_us < MIN_RESIDUALS * residual_us:
        behind = f"no rank comes to a collective more than {units.time(latest_us)} behind the first, in the mean"
        yield Excluded(wait_us, wait_us / ranks.step_us, f"{behind}. {agree}")
        return
    replayed = ranks.replayed
    case = ranks.case_of(replayed)
    late = [members[index].rank for index in skew.late_ranks()]
    one_by_one = not members[waiting].in_graphs
    cause = Cause(
        title=_title(late, latest_us, wait_us),
        confidence=Confidence.MEDIUM if one_by_one else Confidence.HIGH,
        notes=[
            f"Rank {members[waiting].rank} waits most, {units.time(wait_us)} a step.",
            f"The steps predicted are those of rank {members[replayed].rank}.",
            f"The transfer itself takes {units.time(skew.transfer_us())}.",
            agree,
            *([LAUNCHED_SINGLY] if one_by_one else []),
        ],
        time_us_per_step=wait_us,
        evidence=Evidence(
            calls_per_step=ranks.calls_per_step,
            us_per_call=float(kernel_us[waiting]),
            ranks=[
                RankArrival(rank=each.rank, arrival_us=float(came), kernel_us=float(took))
                for each, came, took in zip(members, arrival, kernel_us, strict=True)
            ],
            late_ranks=late,
            transfer_us=skew.transfer_us(),
            clock_residual_us=residual_us,
            replayed_trace=members[replayed].trace,
        ),
        change=on_time(ranks, replayed, case, Arrive.MEDIAN),
        change_at_best=on_time(ranks, replayed, case, Arrive.EARLIEST),
        assumption=ASSUMPTION,
    )
    yield RanksCause(cause, replayed)


def _title(late: Sequence[int], latest_us: float, wait_us: float) -> str:
    if not late:
        return f"Ranks wait {units.time(wait_us)} a step for each other; who is late changes from call to call"
    lateness = f"{units.time(latest_us)} late to a collective in the mean, and the others wait"
    if len(late) == 1:
        return f"Rank {late[0]} comes {lateness}"
    return f"Ranks {units.ranges(late)} come up to {lateness}"


RULE = Rule("rank-skew", __doc__, check, needs=("GPU kernels of several ranks of one run",), check_ranks=check_ranks)
