"""Which multiplication of a step is the LM head, and how large: what comes after it is sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope import units
from stepscope.document import Confidence
from stepscope.model import Component
from stepscope.pipeline.cost import Ceilings, Work
from stepscope.pipeline.cost.ops import as_gemm, call_of
from stepscope.pipeline.cost.rank import ACTIVATION_BYTES

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

_DTYPE = "BFloat16"
"""Of the LM head, which is never quantised by default."""
_GEMMS = {"gemm", "moe-gemm"}
FITS_ALL_TOKENS = (0.8, 2.0)
"""Without shapes: a multiplication that takes so many times the least time for all tokens computes all of them."""
LEAST_SLOWDOWN = 2.0
"""Without shapes: and at least so many times the least time for the rows that are needed."""
LONGER_THAN_ALIKE = 1.1
"""Without shapes: and so many times as long as the longest of the same kernel and grid, which a layer's would not; the
head of Llama 3.1 405B is 1.2 times as high as the highest weight of its layers, that of others 1.4 times and more."""

LEAST_VOCABULARY = 8192
"""Of a rank, without a model: the smallest in use, 32,000, shared by four; and more than twice the model's width."""
_SECOND_HALF = "splitKreduce"
"""Adds up the parts of a multiplication that stands before it."""


class Product(NamedTuple):
    """A group of kernels that multiplies by the LM head, and its sizes."""

    group: WorkGroup
    gemm: Gemm


class Multiplied(NamedTuple):
    """The LM head's multiplication: [rows, width] × [width, vocabulary]."""

    rows: int
    vocabulary: int
    width: int
    dtype: str
    fixed_bytes: float
    """Of the weight, however many rows there are."""
    from_shape: bool
    """Or else from its duration."""

    def work(self, rows: int) -> Work:
        """Return what so many rows cost."""
        moved = self.fixed_bytes + rows * (self.width + self.vocabulary) * ACTIVATION_BYTES
        return Work(moved, 2.0 * rows * self.vocabulary * self.width, self.dtype)

    def shrinks_to(self, rows: int, ceilings: Ceilings | None) -> float:
        """Return the fraction of its time that is left if only so many rows are multiplied, at the same efficiency."""
        few, many = self.work(rows), self.work(self.rows)
        if ceilings is None:
            return max(few.flops / many.flops, few.bytes / many.bytes)
        return ceilings.call_floor(few)[0] / ceilings.call_floor(many)[0]


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


def multiplied(case: Case, placement: Placement, lm_head: LmHead) -> Multiplied | None:
    """Return the sizes of the LM head's longest product, by its shape, or else by its time; None where neither tells.

    Without shapes only one thing can be told: that it takes as long as all tokens must, longer than needed ones, and
    longer than what else the same kernel multiplies.
    """
    if lm_head.products:
        gemm = lm_head.products[0].gemm
        fixed = gemm.bytes - gemm.m * (gemm.k + gemm.n) * ACTIVATION_BYTES
        return Multiplied(gemm.m, gemm.n, gemm.k, gemm.multiply_dtype, max(fixed, 0), from_shape=True)
    weight, ceilings = lm_head_weight(case), Ceilings.of(case.gpu)
    tokens, needed = case.step.tokens, case.step.batch_size
    if weight is None or ceilings is None or tokens is None or needed is None:
        return None
    if not _is_longest_alike(placement, lm_head):
        return None
    last = np.zeros(placement.step.shape, dtype=np.bool_)
    last[lm_head.rows] = True
    if any(_gemm(group) for group in placement.parts_of(last)):  # its shapes are known, and are not the head's
        return None
    vocabulary, width = weight.shape
    all_of_it = Multiplied(tokens, vocabulary, width, _DTYPE, weight.elements * ACTIVATION_BYTES, from_shape=False)
    us = float(np.median((placement.end - placement.start)[lm_head.rows])) / 1e3
    all_us, needed_us = (ceilings.call_floor(all_of_it.work(rows))[0] for rows in (tokens, needed))
    low, high = FITS_ALL_TOKENS
    return all_of_it if low * all_us <= us <= high * all_us and us >= LEAST_SLOWDOWN * needed_us else None


def how_known(case: Case, head: Multiplied, us: float) -> tuple[Confidence, list[str]]:
    """Say how sure it is that it is the head and of this size, and why; `us` is what a call takes."""
    if not head.from_shape:
        size = f"{head.rows:,} × {head.width:,} × {head.vocabulary:,}"
        alone = "It is the step's last multiplication, no other by its kernel takes as long"
        note = f"No shapes were recorded. {alone}, and it takes {units.time(us)}, as {size} does on this GPU."
        return Confidence.LOW, [note]
    if case.deployment.spec is None:
        note = "No model is known. It has more columns than any other multiplication, and runs once a step."
        return Confidence.MEDIUM, [note]
    return Confidence.HIGH, []


def _gemm(group: WorkGroup) -> Gemm | None:
    call = call_of(group)
    return as_gemm(call) if call else None


def _is_longest_alike(placement: Placement, lm_head: LmHead) -> bool:
    """Tell whether it takes longer than the longest of the same kernel and grid in its step: a layer's would not."""
    rows = lm_head.rows
    if not rows.size:
        return False
    took, others = placement.end - placement.start, np.isin(placement.group, placement.group[rows])
    others[rows] = False
    longest = np.zeros(max(placement.steps) + 1, dtype=np.int64)
    np.maximum.at(longest, placement.step[others], took[others])
    return bool(np.median(took[rows]) >= LONGER_THAN_ALIKE * np.median(longest[placement.step[rows]]))


def lm_head_weight(case: Case) -> Weight | None:
    """Return the LM head as it lies on one rank; None where no weight is known."""
    return next((weight for weight in case.deployment.weights if _is_matrix_of_head(weight)), None)


def _is_matrix_of_head(weight: Weight) -> bool:
    return weight.component is Component.LM_HEAD and weight.is_matrix


def _products(case: Case) -> Iterator[Product]:
    """Yield the multiplications by a tensor as high as the vocabulary, whole or this rank's part of it.

    Without a model it is the one with the most columns, if a step has it once; layers repeat theirs.
    """
    all_of_them = [
        Product(group, gemm)
        for group in case.groups
        if (gemm := _gemm(group)) and gemm.batch == 1 and _SECOND_HALF not in group.kernel
    ]
    spec, weight = case.deployment.spec, lm_head_weight(case)
    if spec is not None:
        heights = {spec.vocab_size, weight.shape[0] if weight else spec.vocab_size}
        yield from (product for product in all_of_them if product.gemm.n in heights)
        return
    most = max((product.gemm.n for product in all_of_them), default=0)
    widest = [product for product in all_of_them if product.gemm.n == most]
    once = sum(product.group.calls_per_step for product in widest) <= 1
    if once and all(product.gemm.n >= max(LEAST_VOCABULARY, 2 * product.gemm.k) for product in widest):
        yield from widest
