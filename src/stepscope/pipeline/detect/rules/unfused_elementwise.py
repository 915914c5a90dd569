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
which belong to attention. Sampling, once a step. Training, whose backward pass needs what lies between. And some
fusions lose: 0.28 to 0.89 times the speed was reported of fused kernels. So the gain is an upper bound.

## Control
Replace one of the chains by a fused kernel, or compile the function, and measure a step: it must get shorter by the
chain's part of the gain.

## Fixes
Take the framework's fused layers (SGLang and vLLM have RMSNorm with the residual's sum, rotary embedding of queries and
keys together, SiLU and product with quantisation). In code: `torch.compile` the function, or write one kernel for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stepscope import units
from stepscope.document import Confidence, Fix
from stepscope.pipeline.detect.evidence import work_evidence
from stepscope.pipeline.detect.host_ops import with_ops_gone
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.placement import Placement
from stepscope.pipeline.detect.rule import Case, Cause, Rule, Unchecked
from stepscope.pipeline.detect.training import is_training
from stepscope.pipeline.whatif import chains, fused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.attribute import WorkGroup

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

LEAST_KERNELS = 6
"""Of a chain: a norm written out has six or more; between fused kernels five were seen, of several producers."""
LEAST_CHAINS = 8
"""A step: one in every layer; what runs once is the sampler's or prepares the step."""
MIN_SHARE = 0.01
"""Less of what the GPU does in a step is not worth a reader's time."""

_BY_ELEMENT = {"norm", "rope", "quantise", "activation", "elementwise", "cast"}
_COPIES = {"copy"}
"""They may stand in a chain, and are gone with it, but do not make it one."""
_PLAIN_REDUCTION = "::reduce_kernel<"
"""Torch's mean, sum and norm; softmax and sorts have kernels of their own."""
_PRODUCERS = ("norm", "rope", "activation", "elementwise")
"""What can write the low-precision type itself."""

CONTROL = (
    "Fuse one of the chains, or torch.compile the function that it comes from, and measure a step; it must get shorter"
    " by that chain's part of the gain. Fused kernels can be slower than what they replace."
)
ASSUMPTION = (
    "each chain becomes one kernel that takes as long as its longest does today, which is the most that can be gained;"
    " the others' launches and ops are gone; from the fastest to the slowest step, and 10% for the replay's error"
)


class _Chains(NamedTuple):
    """The chains of a phase that a producer would absorb."""

    number: Ints
    """Shape [kernels]: of the chain that each belongs to, or -1."""
    each: pl.DataFrame
    """A row a chain: its `number`, `step`, and `classes` in order, as text."""


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find chains of element-wise kernels that repeat in every step as layers do."""
    placement = Placement.of(case)
    of = _find(case, placement)
    a_step = of.each.height / len(case.step_indices)
    if a_step < LEAST_CHAINS or is_training(case.linked):
        return
    change = fused(case.linked, of.number)
    time_us = placement.covered_us_per_step(change.removed)
    if time_us < MIN_SHARE * float(np.median(case.measured.busy_us)):
        return
    rows = of.number >= 0
    origin = Origin.of(case, placement.groups_of(rows))
    kernels = units.count(placement.calls_per_step(rows))
    yield Cause(
        title=f"{units.count(round(a_step))} chains of small kernels a step, {kernels} in all, could be a kernel each",
        confidence=Confidence.MEDIUM,
        notes=[*_pattern_notes(of, case), *origin.notes],
        time_us_per_step=time_us,
        evidence=work_evidence(placement, rows, origin),
        change=with_ops_gone(case.linked, change),
        assumption=ASSUMPTION,
        control=CONTROL,
        fix=_fixes(origin),
    )


def _find(case: Case, placement: Placement) -> _Chains:
    number = chains(case.linked, placement.where(_may_fuse), placement.step)
    rows = np.flatnonzero(number >= 0)
    classes = np.array([group.kernel_class for group in case.groups], dtype=np.str_)
    table = pl.DataFrame(
        {"number": number[rows], "step": placement.step[rows], "class": classes[placement.group[rows]]},
        schema={"number": pl.Int64, "step": pl.Int64, "class": pl.String},
    )
    text = pl.col("class").str.join(" + ")
    each = table.group_by("number", maintain_order=True).agg(
        pl.col("step").first(), text.alias("classes"), (~pl.col("class").is_in(_COPIES)).sum().alias("kernels")
    )
    quantised = pl.col("classes").str.contains(rf"\b({'|'.join(_PRODUCERS)}) \+ quantise\b")
    each = each.filter((pl.col("kernels") >= LEAST_KERNELS) | quantised)
    return _Chains(np.where(np.isin(number, each["number"].to_numpy()), number, -1), each)


def _may_fuse(group: WorkGroup) -> bool:
    if group.kernel_class == "reduction":
        return _PLAIN_REDUCTION in group.kernel
    return group.kernel_class in _BY_ELEMENT | _COPIES


def _pattern_notes(of: _Chains, case: Case) -> list[str]:
    """Say what the most frequent chain is made of, and what the order of kernels does not tell."""
    classes, times = of.each["classes"].value_counts(sort=True).row(0)
    often = units.count(round(times / len(case.step_indices)))
    return [
        f"The most frequent, {often} times a step: {classes}.",
        "That each kernel reads what the one before it wrote is inferred from their order: a trace holds no addresses.",
    ]


def _fixes(origin: Origin) -> Sequence[Fix]:
    return (
        Fix(
            what="Use the server's fused layers for this model, or let its compiler fuse (vLLM: drop --enforce-eager;"
            " SGLang: --enable-torch-compile, for small batches)",
            kind="configuration",
            needs="a restart; compare the output",
        ),
        Fix(
            what="Replace each chain by one kernel: a fused norm, rotation or quantisation, or torch.compile",
            kind="code",
            where=origin.where,
        ),
    )


RULE = Rule(
    id="unfused-elementwise",
    title="Norms, rotations or quantisations run as chains of small kernels",
    phases=("decode", "prefill", "mixed", "unknown"),
    needs=("GPU kernels",),
    explanation=__doc__,
    check=check,
    is_general=True,
    classes=("norm", "rope", "quantise", "activation", "elementwise", "cast", "reduction"),
)
