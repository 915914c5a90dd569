"""Requests that decode stand still while the prompts of new ones are computed.

## What it looks like
Long prefill steps between decode steps, and after them at least one request that decoded before: its tokens come at
the pace of the decode step, but for one that takes as long as the whole prefill. The median time between tokens is
fine, the 99th percentile is not.

## Why it happens
The scheduler gives new requests precedence, so that their first token comes soon, and computes a whole prompt, or a
large chunk of it, in steps of its own.

## What looks the same and is harmless
A prefill before anything decodes, or after all that decoded has ended. A prefill as short as a step or two. A single
one in a recording: how often it happens, only several tell. Mixed steps, which decode meanwhile.

## Control
Send the same requests at the same rate with a smaller chunk of prefill (SGLang: `--chunked-prefill-size 2048`); if the
slowest time between two tokens does not fall, the prefill does not hold them up.

## Fixes
- configuration: Let chunks of a prompt share steps with decode (SGLang: `--enable-mixed-chunk` with a smaller
  `--chunked-prefill-size`; vLLM: a smaller `--max-num-batched-tokens`). Needs a restart; first tokens come later.
- configuration: Prefill on other GPUs than decode (disaggregation). Needs more GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from stepscope import units
from stepscope.document import Confidence, Evidence
from stepscope.pipeline.detect.idle import Idle
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.steps import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MIN_STALLS = 2
"""A single one tells nothing of how often it happens."""
MIN_STALL_STEPS = 2.0
"""What takes less than so many decode steps, nobody notices between two tokens."""
MIN_SHARE = 0.01
"""Less than this for each decode step, on average, is rare."""


@dataclass(frozen=True, slots=True)
class _Stall:
    """Prefill between two decode steps, which at least one request waits for."""

    us: float
    tokens: int | None


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find prefill that interrupts decode several times."""
    median_us = case.measured.step_us
    stalls = [stall for stall in _stalls(case) if stall.us >= MIN_STALL_STEPS * median_us]
    decodes = len(case.steps.phases()[case.phase])
    lost_us = sum(stall.us for stall in stalls) / decodes
    if not median_us or len(stalls) < MIN_STALLS or lost_us < MIN_SHARE * median_us:
        return
    longest = max(stalls, key=lambda stall: stall.us)
    tokens = "" if longest.tokens is None else f", in which {longest.tokens:,} tokens of prompts were computed"
    times = units.count(round(longest.us / median_us))
    compared = f"A decode step takes {units.time(median_us)}, the longest interruption {times} times that"
    yield Cause(
        title=f"Prefill interrupts decode {len(stalls)} times in {decodes} steps, for up to {units.time(longest.us)}",
        confidence=Confidence.HIGH,
        notes=[f"{compared}{tokens}. The median time between tokens does not show it, the slowest do."],
        time_us_per_step=lost_us,
        evidence=Evidence(
            calls_per_step=len(stalls) / decodes, us_per_call=float(np.median([stall.us for stall in stalls]))
        ),
        change=None,
    )


def _stalls(case: Case) -> Iterator[_Stall]:
    steps, spans = case.steps.steps, Idle.of(case).spans
    ran = np.flatnonzero(spans.ran).tolist()
    decoded = False
    prefill: list[int] = []
    for phase, members in groupby(ran, key=lambda index: steps[index].phase):
        run = list(members)
        if phase == case.phase:
            if decoded and prefill and _someone_waits(case, prefill, run[0]):
                us = float(spans.begin[run[0]] - spans.begin[prefill[0]]) / 1e3
                tokens = [steps[index].tokens for index in prefill]
                yield _Stall(us, sum(filter(None, tokens)) if all(tokens) else None)
            decoded = True
        prefill = run if phase is Phase.PREFILL else []


def _someone_waits(case: Case, prefill: list[int], decode: int) -> bool:
    """Tell whether more requests decode than were prefilled just before; a prompt of several chunks counts several."""
    steps = case.steps.steps
    after = steps[decode].batch_size
    new = [steps[index].batch_size for index in prefill]
    return after is not None and all(new) and after > sum(filter(None, new))


RULE = Rule(
    "prefill-blocks-decode",
    __doc__,
    check,
    needs=("GPU kernels", "annotations that tell prefill from decode, with their requests"),
    phases=("decode",),
)
