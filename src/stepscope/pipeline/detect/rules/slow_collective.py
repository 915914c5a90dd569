"""A small collective takes far longer than it must: the wrong algorithm for its size, or a slow path between GPUs.

## What it looks like
Collectives of some KB, two in each layer, that take 20 µs and more even where nobody waits: their shortest calls are
several times as long as the fastest kernels that were measured for so many bytes.

## Why it happens
For small messages latency is all. NCCL's ring passes a message from rank to rank, 2(n − 1) times; kernels in which each
rank writes to all others at once ("one-shot", custom all-reduce) need one such step. Servers turn those off where the
GPUs are not joined by NVLink, where peer access is missing, or where a switch says so.

## What looks the same and is harmless
Large messages, which are bound by the links: there a ring is the fastest, and custom kernels lose. A rank that waits
for a late one: its kernel lasts as long, whatever the algorithm (`rank-skew`); only several ranks' traces tell both
apart, and of one rank alone it is said with low confidence. Groups over several hosts, whose network takes as long.

## Control
Time this collective alone, in a CUDA graph, on these GPUs and at this size (nccl-tests: `all_reduce_perf -b 8K -e 8K -G
20`). If it takes as long there, the path is slow; if not, the ranks do not arrive together.

## Fixes
- configuration: Let the server use its one-shot all-reduce for small messages (SGLang, vLLM: drop
  `--disable-custom-all-reduce`; SGLang: `--enable-flashinfer-allreduce-fusion`). Needs peer access between the GPUs
  (without NVLink: over the PCIe switch).
- code: Fuse the collective with the norm that follows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope import units
from stepscope.document import Confidence, Evidence
from stepscope.hardware import best_known
from stepscope.pipeline.detect.casts import covered_us_per_step
from stepscope.pipeline.detect.rule import Case, Cause, RanksCase, RanksCause, Rule, Unchecked
from stepscope.pipeline.ranks import ALL_TO_ALL, collectives, message_of
from stepscope.pipeline.whatif import Change

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.hardware import BestKnown, Gpu
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.ranks import Message

MIN_RATIO = 2.0
"""So many times the best known: in a step a kernel takes a sixth longer than alone, and its size may be rounded up."""
MIN_SHARE = 0.01
"""What the excess must take of the step."""
NOTABLE_SHARE = 0.1
"""Collectives of unknown size that take less of a step are not worth a question."""

SIZE_UNKNOWN = Unchecked(
    "whether the collectives take longer than they must: how many bytes they carry is not known",
    "give --model and --tp; or record an eager run with record_shapes=True",
)
NOTHING_MEASURED = Unchecked(
    "whether the all-to-alls take longer than they must: nothing was measured to compare them with",
    "time them alone, on these GPUs and at these sizes (nccl-tests: alltoall_perf; DeepEP: its own tests)",
)
ASSUMPTION = (
    "every call is shorter by what the transfer takes beyond the best known time for so many bytes; all other work"
    " stays as recorded, and the other ranks' steps change alike"
)
ONE_RANK = (
    "The trace is of one rank. If another one is late to every call, this one waits in all of them, the shortest"
    " included, and its trace looks the same. The traces of all ranks together tell which it is."
)


class _Slow(NamedTuple):
    """Calls that carry the same, and take longer than the best known."""

    kernel: str | None
    message: Message
    best: BestKnown
    us: float
    """What a call takes at least."""
    calls_per_step: float

    @property
    def excess_us_per_step(self) -> float:
        return (self.us - self.best.us) * self.calls_per_step


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find collectives of one rank of which even the shortest call is slow."""
    groups = collectives(case.groups, case.linked)
    if not case.alone or not groups:
        return
    slow, excess = [], np.zeros(case.linked.kernels.height)
    unknown: list[WorkGroup] = []
    unmeasured: list[WorkGroup] = []
    for group in groups:
        message = message_of(group, case.linked, case.deployment, case.step)
        if message is None or message.collective == ALL_TO_ALL:
            (unknown if message is None else unmeasured).append(group)
            continue
        if not group.is_repeated:
            continue
        steady = np.isin(group.step_of_row, case.step_indices)
        shortest = float(group.us[steady].min())
        each = _slow(case.gpu, group.kernel, message, shortest, group.calls_per_step)
        if each is not None:
            slow.append(each)
            excess[group.rows] = (each.us - each.best.us) * 1e3
    for groups, said in ((unknown, SIZE_UNKNOWN), (unmeasured, NOTHING_MEASURED)):
        if not slow and groups and covered_us_per_step(case, groups) >= NOTABLE_SHARE * case.measured.step_us:
            yield said
    if slow and sum(each.excess_us_per_step for each in slow) >= MIN_SHARE * case.measured.step_us:
        yield _cause(case, slow, excess, None)


def check_ranks(ranks: RanksCase) -> Iterator[RanksCause | Unchecked]:
    """Find collectives of several ranks of which the transfer itself is slow."""
    calls, transfer, member = ranks.calls, ranks.skew.transfer, ranks.replayed
    slow, excess_us = [], np.zeros(transfer.shape)
    for number, message in enumerate(calls.messages):
        mine = calls.message == number
        if not mine.any():
            continue
        per_step = float(np.median(np.bincount(np.unique(calls.step, return_inverse=True)[1], mine)))
        each = _slow(calls.ranks[member].gpu, None, message, float(np.median(transfer[mine])), per_step)
        if each is not None:
            slow.append(each)
            excess_us[mine] = np.maximum(transfer[mine] - each.best.us, 0.0)
    if not slow or sum(each.excess_us_per_step for each in slow) < MIN_SHARE * ranks.step_us:
        return
    case = ranks.case_of(member)
    excess = np.zeros(case.linked.kernels.height)
    takes_part = calls.row[member] >= 0
    excess[calls.row[member][takes_part]] = excess_us[takes_part] * 1e3
    yield RanksCause(_cause(case, slow, excess, calls.ranks[member].trace), member)


def _slow(gpu: Gpu | None, kernel: str | None, message: Message, us: float, per_step: float) -> _Slow | None:
    best = best_known(gpu, message.collective, message.bytes, message.ranks)
    if best is None or us < MIN_RATIO * best.us or not per_step:
        return None
    return _Slow(kernel, message, best, us, per_step)


def _cause(case: Case, slow: Sequence[_Slow], excess_ns: NDArray[np.float64], replayed: int | None) -> Cause:
    """Return the cause; `replayed` is the trace that the case is of where several ranks show it."""
    largest = max(slow, key=lambda each: each.excess_us_per_step)
    message, best = largest.message, largest.best
    size = units.size(message.bytes)
    told = "" if message.recorded else ", as the model has it"
    elsewhere = "" if best.same_gpu else ", on other GPUs than these"
    recorded = case.linked.kernels["duration_ns"].to_numpy()
    sure = Confidence.HIGH if message.recorded and best.same_gpu else Confidence.MEDIUM
    return Cause(
        title=f"{units.count(largest.calls_per_step)} {message.collective}s of {size} a step take"
        f" {units.time(largest.us)} each; {units.time(best.us)} is known to do",
        confidence=Confidence.LOW if replayed is None else sure,
        notes=[
            f"A message is of {size}{told}. Best known{elsewhere}: {best.source}.",
            *([ONE_RANK] if replayed is None else []),
        ],
        time_us_per_step=sum(each.excess_us_per_step for each in slow),
        evidence=Evidence(
            kernel=largest.kernel,
            calls_per_step=largest.calls_per_step,
            us_per_call=largest.us,
            bytes_per_call=message.bytes,
            bytes_per_step=round(message.bytes * largest.calls_per_step),
            floor_us_per_step=sum(each.best.us * each.calls_per_step for each in slow),
            transfer_us=None if replayed is None else largest.us,
            best_known_us=best.us,
            replayed_trace=replayed,
        ),
        change=Change.shorter(np.minimum(excess_ns, recorded)),
        assumption=ASSUMPTION,
    )


RULE = Rule(
    "slow-collective",
    __doc__,
    check,
    needs=("GPU kernels", "what a collective carries: recorded by an eager run, or --model and --tp"),
    check_ranks=check_ranks,
    classes=("collective",),
)
