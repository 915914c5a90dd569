"""The sampler sorts the whole vocabulary for every request of a large batch.

## What it looks like
After the LM head, sorts over [batch, vocabulary] in 32 bits, and softmax, running sum, mask and scatter beside them:
twenty or thirty kernels in place of one or two.

## Why it happens
A top-p sampler written in plain operations sorts all probabilities, adds them up, masks, and puts the rest back in
place. It does so even where every request is greedy, if nothing looks at what was asked for.

## What looks the same and is harmless
A sort for a few requests: up to 7 it beats the kernels that do without, which read the vocabulary of a request with one
block (vLLM itself sorts there). Top-k alone, which selects without sorting. A softmax, a random draw or an argmax: each
reads the logits once. Sorts of routed tokens, which stand before the LM head.

## Control
Ask for greedy tokens only (temperature 0), or for top_p = 1 without top_k. If the step does not get shorter by what is
predicted, something else hides the sampler.

## Fixes
- configuration: Sample with one kernel (SGLang: `--sampling-backend flashinfer`; vLLM:
  `VLLM_USE_FLASHINFER_SAMPLER=1`, or a version whose own top-k/top-p kernel takes batches from 8 on). Needs a restart;
  requests with seeds of their own or logprobs may still take the slow way.
- code: Take the argmax where all requests are greedy, leave out top-p where it is 1, and select by rejection or by a
  threshold instead of sorting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope import units
from stepscope.document import Confidence
from stepscope.pipeline.detect.evidence import work_evidence
from stepscope.pipeline.detect.host_ops import with_ops_gone
from stepscope.pipeline.detect.lm_head import find_lm_head
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.placement import Placement
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.detect.sampler import SAMPLER, sorted_logits, sorts_widely, with_logits
from stepscope.pipeline.detect.training import is_training
from stepscope.pipeline.whatif import fused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.document import Evidence
    from stepscope.pipeline.attribute import WorkGroup

MIN_ROWS = 8
"""Fewer requests are sorted faster than a kernel samples them that gives each of them one block (vllm#32558)."""
MIN_SHARE = 0.01
"""Less of what the GPU does in a step is not worth a reader's time."""

ASSUMPTION = (
    "one kernel does all of it and takes as long as the longest of today's; the others' launches and ops are gone"
)
UNKNOWN_BATCH = Unchecked(
    "whether sorting the vocabulary is slow here: for up to 7 requests it is not, and nothing tells how many there are",
    "record with record_shapes=True",
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find wide sorts after the LM head, in batches in which they do not pay."""
    placement = Placement.of(case)
    after = (placement.step >= 0) & (placement.start >= find_lm_head(case, placement).ends(placement)[placement.step])
    sorts = after & placement.where(sorts_widely)
    if not sorts.any() or is_training(case.linked):
        return
    sampler = after & placement.where(lambda group: group.kernel_class in SAMPLER)
    time_us = placement.covered_us_per_step(sampler)
    if time_us < MIN_SHARE * case.busy_us:
        return
    sorting = placement.parts_of(sorts)
    logits = sorted_logits(case, sorting, gathered=bool((after & placement.where(_is_collective)).any()))
    if logits is None:
        yield UNKNOWN_BATCH
        return
    if logits.rows < MIN_ROWS:
        return
    evidence = with_logits(case, work_evidence(placement, sampler), logits)
    of = f"{logits.rows} requests" + (f" × {logits.vocabulary:,} tokens" if logits.vocabulary else "")
    yield Cause(
        title=f"The sampler sorts the whole vocabulary, {of}: {units.count(placement.calls_per_step(sampler))} kernels"
        f" after the LM head take {units.time(time_us)} a step",
        confidence=Confidence.HIGH if logits.from_shape else Confidence.MEDIUM,
        notes=_floor_note(evidence),
        time_us_per_step=time_us,
        evidence=evidence,
        change=with_ops_gone(case.linked, fused(case.linked, np.where(sampler, placement.step, -1))),
        assumption=ASSUMPTION,
        origin=Origin.of(case, sorting),
    )


def _is_collective(group: WorkGroup) -> bool:
    return group.kernel_class == "collective"


def _floor_note(evidence: Evidence) -> list[str]:
    if evidence.floor_us_per_step is None or evidence.bytes_per_step is None:
        return []
    size, floor = units.size(evidence.bytes_per_step), units.time(evidence.floor_us_per_step)
    return [f"Reading the logits once, {size} in 32 bits, takes at least {floor}."]


RULE = Rule(
    "slow-sampling",
    __doc__,
    check,
    needs=("GPU kernels", "the batch size, from annotations or input shapes"),
    classes=("sampling", "reduction", "gather"),
)
