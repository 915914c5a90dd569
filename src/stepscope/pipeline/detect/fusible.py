"""Chains of element-wise kernels that the kernel which made their input would absorb."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stepscope.pipeline.detect.rebuilt import dequantises
from stepscope.pipeline.whatif import chains

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.detect.placement import Placement
    from stepscope.pipeline.detect.rule import Case

LEAST_KERNELS = 6
"""Of a chain: a norm written out has six or more; between fused kernels five were seen, of several producers."""
_BY_ELEMENT = {"norm", "rope", "quantise", "activation", "elementwise", "cast"}
_COPIES = {"copy"}
"""They may stand in a chain, and are gone with it, but do not make it one."""
_PLAIN_REDUCTION = "::reduce_kernel<"
"""Torch's mean, sum and norm; softmax and sorts have kernels of their own."""
_PRODUCERS = ("norm", "rope", "activation", "elementwise")
"""What can write the low-precision type itself."""


class Chains(NamedTuple):
    """The chains of a phase that a producer would absorb."""

    number: NDArray[np.int64]
    """Shape [kernels]: of the chain that each belongs to, or -1."""
    each: pl.DataFrame
    """A row a chain: its `number`, `step`, and `classes` in order, as text."""


def fusible_chains(case: Case, placement: Placement) -> Chains:
    """Return the chains of many kernels, and those in which a quantisation follows what made its input.

    What is stored is not made by the kernel before: its dequantisation belongs to no chain.
    """
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
    return Chains(np.where(np.isin(number, each["number"].to_numpy()), number, -1), each)


def _may_fuse(group: WorkGroup) -> bool:
    if group.kernel_class == "reduction":
        return _PLAIN_REDUCTION in group.kernel
    return group.kernel_class in _BY_ELEMENT | _COPIES and not dequantises(group)
