"""Which multiplication of a step is the LM head: what comes after it is sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.model import Component
from stepscope.pipeline.cost.ops import as_gemm, call_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.model import Weight
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.cost.ops import Gemm
    from stepscope.pipeline.detect.placement import Placement
    from stepscope.pipeline.detect.rule import Case

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

_GEMMS = {"gemm", "moe-gemm"}
_SECOND_HALF = "splitKreduce"
"""Adds up the parts of a multiplication that stands before it."""


class Product(NamedTuple):
    """A group of kernels that multiplies by the LM head, and its sizes."""

    group: WorkGroup
    gemm: Gemm


@dataclass(frozen=True, slots=True)
class LmHead:
    """The last multiplication by the LM head in each step."""

    rows: Ints
    """Rows of `Linked.kernels`, one for each step that has one."""
    products: tuple[Product, ...]
    """Those that shapes tell to be it, the longest first; empty: it is the last multiplication of the step."""

    def ends(self, placement: Placement) -> Ints:
        """Return when it has ended, by step, in ns; a step without it never gets so far."""
        ends = np.full(max(placement.steps) + 1, np.iinfo(np.int64).max)
        ends[placement.step[self.rows]] = placement.end[self.rows]
        return ends


def find_lm_head(case: Case, placement: Placement) -> LmHead:
    """Find the LM head of each step by the shape of its weight, or else by its place."""
    products = tuple(_products(case))
    known = {id(product.group) for product in products}

    def is_head(group: WorkGroup) -> bool:
        if known:
            return id(group) in known
        return group.kernel_class in _GEMMS and _SECOND_HALF not in group.kernel

    rows = np.flatnonzero(placement.where(is_head))
    by_step = rows[np.lexsort((placement.start[rows], placement.step[rows]))]
    last = np.diff(placement.step[by_step], append=-1) != 0
    return LmHead(by_step[last], products)


def lm_head_weight(case: Case) -> Weight | None:
    """Return the LM head as it lies on one rank; None where no weight is known."""
    return next((weight for weight in case.deployment.weights if _is_matrix_of_head(weight)), None)


def _is_matrix_of_head(weight: Weight) -> bool:
    return weight.component is Component.LM_HEAD and weight.is_matrix


def _products(case: Case) -> Iterator[Product]:
    """Yield the multiplications by a tensor as high as the vocabulary, whole or this rank's part of it."""
    spec, weight = case.deployment.spec, lm_head_weight(case)
    if spec is None:
        return
    heights = {spec.vocab_size, weight.shape[0] if weight else spec.vocab_size}
    for group in case.groups:
        call = call_of(group)
        gemm = as_gemm(call) if call else None
        if gemm and gemm.n in heights and gemm.batch == 1 and _SECOND_HALF not in group.kernel:
            yield Product(group, gemm)
