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
Ask for greedy tokens only (temperature 0), or for top_p = 1 and no top_k; if the step does not get shorter by what is
predicted, something else hides the sampler.

## Fixes
Sample with one kernel (SGLang: `--sampling-backend flashinfer`; vLLM: `VLLM_USE_FLASHINFER_SAMPLER=1`, or a version
whose own top-k/top-p kernel takes batches from 8 on). In code: take the argmax where all are greedy, skip top-p where
it is 1, select by rejection or by a threshold instead of sorting.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace

from stepscope import units
from stepscope.document import Confidence, Fix
from stepscope.dtypes import item_bytes
from stepscope.pipeline.cost import Ceilings, Work
from stepscope.pipeline.detect.evidence import work_evidence
from stepscope.pipeline.detect.host_ops import with_ops_gone
from stepscope.pipeline.detect.lm_head import find_lm_head, lm_head_weight
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.placement import Placement
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.detect.training import is_training
from stepscope.pipeline.whatif import fused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.document import Evidence
    from stepscope.pipeline.attribute import WorkGroup

MIN_ROWS = 8
"""Fewer requests are sorted faster than a kernel samples them that gives each of them one block (vllm#32558)."""
MIN_VOCABULARY = 4097
"""What is not longer is sorted by one block of torch's, and is no vocabulary."""
MIN_SHARE = 0.01
"""Less of what the GPU does in a step is not worth a reader's time."""

_WIDE_SORT = re.compile(
    r"DeviceRadixSort|Device\w*Segmented\w*Sort|segmented_?sort|sort_postprocess|rocprim\S*sort", re.IGNORECASE
)
"""Sorts of rows that are too long for one block."""
_SAMPLER = {"reduction", "sampling", "gather", "elementwise", "cast"} | {
    "copy",
    "fill",
    "memset",
    "memcpy",
    "unclassified",
}
"""Classes of what a sampler is made of; collectives that gather the logits are not its own."""
_SELECTS = {"aten::topk"}
"""What sorts only what it has selected."""

LOGITS = "Float"
CONTROL = (
    "Ask for greedy tokens only (temperature 0), or for top_p = 1 without top_k; the step must get shorter by the"
    " predicted time."
)
ASSUMPTION = (
    "one kernel does all of it and takes as long as the longest of today's; the others' launches and ops are gone; from"
    " the fastest to the slowest step, and 10% for the replay's error"
)
UNKNOWN_BATCH = Unchecked(
    "whether sorting the vocabulary is slow here: for up to 7 requests it is not, and nothing tells how many there are",
    "record with record_shapes=True",
)


class _Logits(NamedTuple):
    rows: int
    vocabulary: int | None
    from_shape: bool


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find wide sorts after the LM head, in batches in which they do not pay."""
    placement = Placement.of(case)
    after = (placement.step >= 0) & (placement.start >= find_lm_head(case, placement).ends(placement)[placement.step])
    sorts = after & placement.where(_sorts_widely)
    if not sorts.any() or is_training(case.linked):
        return
    sampler = after & placement.where(lambda group: group.kernel_class in _SAMPLER)
    time_us = placement.covered_us_per_step(sampler)
    if time_us < MIN_SHARE * float(np.median(case.measured.busy_us)):
        return
    sorting = placement.groups_of(sorts)
    logits = _logits(case, sorting, gathered=bool((after & placement.where(_is_collective)).any()))
    if logits is None:
        yield UNKNOWN_BATCH
        return
    if logits.rows < MIN_ROWS:
        return
    origin = Origin.of(case, sorting)
    evidence = _with_logits(case, work_evidence(placement, sampler, origin), logits)
    of = f"{logits.rows} requests" + (f" × {logits.vocabulary:,} tokens" if logits.vocabulary else "")
    yield Cause(
        title=f"The sampler sorts the whole vocabulary, {of}: {units.count(placement.calls_per_step(sampler))} kernels"
        f" after the LM head take {units.time(time_us)} a step",
        confidence=Confidence.HIGH if logits.from_shape else Confidence.MEDIUM,
        notes=[*_floor_note(evidence), *origin.notes],
        time_us_per_step=time_us,
        evidence=evidence,
        change=with_ops_gone(case.linked, fused(case.linked, np.where(sampler, placement.step, -1))),
        assumption=ASSUMPTION,
        control=CONTROL,
        fix=_fixes(origin),
    )


def _sorts_widely(group: WorkGroup) -> bool:
    if group.op in _SELECTS or not _WIDE_SORT.search(group.kernel):
        return False
    return not group.input_shapes or not group.input_shapes[0] or group.input_shapes[0][-1] >= MIN_VOCABULARY


def _is_collective(group: WorkGroup) -> bool:
    return group.kernel_class == "collective"


def _logits(case: Case, sorting: Sequence[WorkGroup], *, gathered: bool) -> _Logits | None:
    """Return the size of what is sorted: as recorded, else the batch and the vocabulary, whole once it is gathered."""
    for group in sorting:
        if group.input_shapes and len(group.input_shapes[0]) > 1:
            *leading, width = group.input_shapes[0]
            return _Logits(prod(leading), width, from_shape=True)
    if case.step.batch_size is None:
        return None
    spec, weight = case.deployment.spec, lm_head_weight(case)
    vocabulary = spec.vocab_size if spec and (gathered or weight is None) else weight.shape[0] if weight else None
    return _Logits(case.step.batch_size, vocabulary, from_shape=False)


def _with_logits(case: Case, evidence: Evidence, logits: _Logits) -> Evidence:
    """Add the size of the logits, and the least time in which they are read."""
    if logits.vocabulary is None:
        return replace(evidence, tensor="logits")
    size = logits.rows * logits.vocabulary * item_bytes(LOGITS)
    ceilings = Ceilings.of(case.gpu)
    return replace(
        evidence,
        input_shape=[logits.rows, logits.vocabulary],
        source_dtype=LOGITS,
        bytes_per_step=size,
        floor_us_per_step=ceilings.floor(Work(size))[0] if ceilings else None,
        tensor="logits",
    )


def _floor_note(evidence: Evidence) -> list[str]:
    if evidence.floor_us_per_step is None or evidence.bytes_per_step is None:
        return []
    size, floor = units.size(evidence.bytes_per_step), units.time(evidence.floor_us_per_step)
    return [f"Reading the logits once, {size} in 32 bits, takes at least {floor}."]


def _fixes(origin: Origin) -> Sequence[Fix]:
    return (
        Fix(
            what="Sample with one kernel (SGLang: --sampling-backend flashinfer; vLLM: VLLM_USE_FLASHINFER_SAMPLER=1)",
            kind="configuration",
            needs="a restart; requests with seeds of their own or logprobs may still take the slow way",
        ),
        Fix(
            what="Take the argmax where all requests are greedy, and leave out top-p where it is 1",
            kind="code",
            where=origin.where,
        ),
    )


RULE = Rule(
    id="slow-sampling",
    title="The sampler sorts the whole vocabulary",
    phases=("decode", "prefill", "mixed", "unknown"),
    needs=("GPU kernels", "the batch size, from annotations or input shapes"),
    explanation=__doc__,
    check=check,
    classes=("sampling", "reduction", "gather"),
)
