"""Norms, rotations or quantisations run as chains of small kernels, each of which reads what the last one wrote.

## What it looks like
The same chain in every layer: a norm written out as square, mean, root and products with casts between, a rotary
embedding as products, negation, concatenation and sum, or a quantisation right behind the norm or activation that made
its input.

## Why it happens
Model code in plain operations, run without a compiler and without the framework's fused layers; or a quantised path
whose norm or activation has no version that writes the low-precision type itself.

## What looks the same and is harmless
What is fused already: one norm or one rotation beside one sum. Softmax, masks and casts around attention's scores,
which belong to attention. A dequantisation of weights or of the cache, which reads what is stored. Sampling, once a
step. Training, whose backward pass needs what lies between. And some fusions lose: 0.28 to 0.89 times the speed was
reported of fused kernels. So the gain is an upper bound.

## Control
Fuse one of the chains, or `torch.compile` the function that it comes from, and measure a step; it must get shorter by
that chain's part of the gain. Fused kernels can be slower than what they replace.

## Fixes
- configuration: Use the server's fused layers for this model (SGLang and vLLM have RMSNorm with the residual's sum,
  rotary embedding of queries and keys together, SiLU and product with quantisation), or let its compiler fuse (vLLM:
  drop `--enforce-eager`; SGLang: `--enable-torch-compile`, for small batches). Needs a restart; compare the output.
- code: Replace each chain by one kernel: a fused norm, rotation or quantisation, or `torch.compile`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import units
from stepscope.document import Confidence
from stepscope.pipeline.detect.evidence import work_evidence
from stepscope.pipeline.detect.fusible import Chains, fusible_chains
from stepscope.pipeline.detect.host_ops import with_ops_gone
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.placement import Placement
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.detect.training import is_training
from stepscope.pipeline.whatif import fused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LEAST_CHAINS = 8
"""A step: one in every layer; what runs once is the sampler's or prepares the step."""
MIN_SHARE = 0.01
"""Less of what the GPU does in a step is not worth a reader's time."""

ASSUMPTION = (
    "each chain becomes one kernel that takes as long as its longest does today, which is the most that can be gained;"
    " the others' launches and ops are gone"
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find chains of element-wise kernels that repeat in every step as layers do."""
    placement = Placement.of(case)
    of = fusible_chains(case, placement)
    a_step = of.each.height / len(case.step_indices)
    if a_step < LEAST_CHAINS or is_training(case.linked):
        return
    change = fused(case.linked, of.number)
    time_us = placement.covered_us_per_step(change.removed)
    if time_us < MIN_SHARE * case.busy_us:
        return
    rows = of.number >= 0
    kernels = units.count(placement.calls_per_step(rows))
    yield Cause(
        title=f"{units.count(round(a_step))} chains of small kernels a step, {kernels} in all, could be a kernel each",
        confidence=Confidence.MEDIUM,
        notes=_pattern_notes(of, case),
        time_us_per_step=time_us,
        evidence=work_evidence(placement, rows),
        change=with_ops_gone(case.linked, change),
        assumption=ASSUMPTION,
        origin=Origin.of(case, placement.parts_of(rows)),
    )


def _pattern_notes(of: Chains, case: Case) -> list[str]:
    """Say what the most frequent chain is made of, and what the order of kernels does not tell."""
    classes, times = of.each["classes"].value_counts(sort=True).row(0)
    often = units.count(round(times / len(case.step_indices)))
    return [
        f"The most frequent, {often} times a step: {classes}.",
        "That each kernel reads what the one before it wrote is inferred from their order: a trace holds no addresses.",
    ]


RULE = Rule(
    "unfused-elementwise",
    __doc__,
    check,
    needs=("GPU kernels",),
    is_general=True,
    classes=("norm", "rope", "quantise", "activation", "elementwise", "cast", "reduction"),
)
