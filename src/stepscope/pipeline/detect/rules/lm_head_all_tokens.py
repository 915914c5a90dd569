"""The LM head multiplies every token of a prompt, though a token is sampled from the last one only.

## What it looks like
In a prefill, a multiplication of as many rows as the step has tokens with a weight as high as the vocabulary; of the
product a slice of one row a request is used.

## Why it happens
The hidden states go to the head as they are, and the slice is taken from the logits instead of from them.

## What looks the same and is harmless
Log-probabilities of the prompt, scoring, training: they use every row, and a softmax or an argmax over all rows shows
it. Decoding, which has one row a request anyway, and the verification of drafted tokens, which needs a row for each.

## Control
Slice the hidden states before the head and run the same prompt: the step must get shorter by the predicted time; or
halve the prompt, and the head's time must halve.

## Fixes
- configuration: Do not ask for log-probabilities of the prompt where they are not used (vLLM: `prompt_logprobs`;
  SGLang: `logprob_start_len`); in transformers pass `logits_to_keep=1`, as `generate` does for models that take it.
- code: Slice the hidden states to the last token of each request before the LM head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from stepscope import units
from stepscope.pipeline.cost import Ceilings
from stepscope.pipeline.detect.evidence import work_evidence
from stepscope.pipeline.detect.lm_head import find_lm_head, how_known, multiplied
from stepscope.pipeline.detect.logits import passes_on, rows_sampled, uses_rows
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.placement import Placement
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.detect.training import is_training
from stepscope.pipeline.whatif import Change

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


MOST_ROWS_A_REQUEST = 16
"""So many drafted tokens of a request are verified at once, and each needs its row."""
MIN_SHARE = 0.005
"""Less of what the GPU does in a step is not worth a reader's time."""

ASSUMPTION = "the head multiplies one row a request, at the same share of what the GPU can do"


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find heads that multiply more rows than there are requests, where nothing uses the others."""
    placement = Placement.of(case)
    lm_head = find_lm_head(case, placement)
    if not lm_head.rows.size or is_training(case.linked):
        return
    ceilings = Ceilings.of(case.gpu)
    head = multiplied(case, placement, lm_head)
    if head is None:
        return
    after = (placement.step >= 0) & (placement.start >= lm_head.ends(placement)[placement.step])
    needed = case.step.batch_size or rows_sampled(placement.parts_of(after), head)
    if needed is None or head.rows <= MOST_ROWS_A_REQUEST * needed:
        return
    if (after & placement.where(lambda group: uses_rows(group, head.rows))).any():
        return
    is_head = np.zeros_like(after)
    is_head[lm_head.rows] = True
    passing = after & placement.where(lambda group: passes_on(group, head))
    factor = np.where(is_head, head.shrinks_to(needed, ceilings), np.where(passing, needed / head.rows, 1.0))
    gained_ns = float(((placement.end - placement.start) * (1 - factor)).sum())
    if gained_ns / 1e3 < MIN_SHARE * float(case.measured.busy_us.sum()):
        return
    origin = Origin.of(case, placement.parts_of(is_head))
    us = float(np.median((placement.end - placement.start)[is_head])) / 1e3
    confidence, notes = how_known(case, head, us)
    yield Cause(
        title=f"The LM head multiplies {head.rows:,} tokens a step, of which {units.count(needed)}"
        f" {'is' if needed == 1 else 'are'} sampled from",
        confidence=confidence,
        notes=notes,
        time_us_per_step=placement.covered_us_per_step(is_head | passing),
        evidence=replace(
            work_evidence(placement, is_head | passing),
            input_shape=[head.rows, head.width],
            bytes_per_call=round(head.work(head.rows).bytes),
            tensor=f"weight lm_head [{head.vocabulary}, {head.width}]",
            floor_us_per_step=ceilings.call_floor(head.work(needed))[0] if ceilings else None,
        ),
        change=Change.scaled(factor != 1.0, factor),
        assumption=ASSUMPTION,
        origin=origin,
    )


RULE = Rule(
    "lm-head-all-tokens",
    __doc__,
    check,
    needs=("GPU kernels", "input shapes, or --model and --tp to know the LM head's size"),
    phases=("prefill", "mixed", "unknown"),
    classes=("gemm",),
)
