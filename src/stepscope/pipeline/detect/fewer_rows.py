"""What the kernels of a padded step would take if only its live rows ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stepscope.model import Component
from stepscope.pipeline.cost import Ceilings, Work
from stepscope.pipeline.cost.experts import expected_experts
from stepscope.pipeline.cost.ops import as_gemm, call_of
from stepscope.pipeline.cost.rank import ACTIVATION_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.model import Experts
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.detect.placement import Placement
    from stepscope.pipeline.detect.rule import Case

    Floats = NDArray[np.float64]

START_AND_END_NS = 2000.0
"""What a kernel takes however few rows it has."""
ONE_WAVE = 132 * 2048
"""Threads that run at once on an H100 or H200; a launch of fewer takes as long for one row as for all."""

_BY_ROW = {"norm", "rope", "quantise", "activation", "elementwise", "cast", "copy", "gather", "reduction", "sampling"}
"""Classes whose kernels do the same for each row, apart from others."""


class Padding(NamedTuple):
    """A step whose batch was padded."""

    live: int
    """Rows that are needed."""
    rows: int
    """Rows that run."""
    experts: Experts | None
    """Of the model; None: it has none, or is not known."""

    @property
    def share(self) -> float:
        """The share of the rows that is needed."""
        return self.live / self.rows

    def hit(self, rows: int) -> float:
        """Return the share of the experts that so many rows are expected to hit."""
        if self.experts is None:
            return 1.0
        return expected_experts(self.experts.routed, self.experts.per_token, rows) / self.experts.routed

    def notes(self) -> Iterator[str]:
        """Yield what the padding means for the experts."""
        if self.experts is None:
            return
        routed = self.experts.routed
        hit, needed = (round(self.hit(rows) * routed) for rows in (self.rows, self.live))
        yield f"Routed at random, {self.rows:,} rows hit {hit} of {routed} experts, the live {needed}."


def live_only(case: Case, placement: Placement, padding: Padding) -> Floats:
    """Return by what each kernel's duration is multiplied if only the live rows run, shape [kernels]."""
    factor = _by_rows(case, placement, padding) * _by_gemm(case, padding)[placement.group]
    experts = placement.where(multiplies_experts)
    factor[experts] = _experts_left(case, placement.covered_us_per_step(experts), padding)
    return factor


def multiplies_experts(group: WorkGroup) -> bool:
    """Tell whether a group of kernels multiplies by experts' weights; what prepares that has one block."""
    return group.kernel_class == "moe-gemm" and group.grid != (1, 1, 1)


def _by_rows(case: Case, placement: Placement, padding: Padding) -> Floats:
    """Return the factor of kernels that treat rows apart, where they have more threads than run at once."""
    kernels = case.linked.kernels
    grid, block = (
        kernels.select(pl.fold(pl.lit(1, pl.Int64), lambda size, axis: size * axis, pl.col(f"^{name}_[xyz]$")))
        .to_series()
        .fill_null(0)
        .to_numpy()
        for name in ("grid", "block")
    )
    threads = grid * block
    by_row = placement.where(lambda group: group.kernel_class in _BY_ROW)
    by_row &= (threads > ONE_WAVE) & (grid % padding.rows == 0)
    duration = np.maximum((placement.end - placement.start).astype(np.float64), 1.0)
    fixed = np.minimum(START_AND_END_NS, duration)
    left = np.maximum(padding.share, ONE_WAVE / np.maximum(threads, 1))
    return np.where(by_row, (fixed + (duration - fixed) * np.minimum(left, 1.0)) / duration, 1.0)


def _by_gemm(case: Case, padding: Padding) -> Floats:
    """Return the same by group, and 1 at the end, for multiplications of known shapes: their rooflines' ratio."""
    ceilings = Ceilings.of(case.gpu)
    left = np.ones(len(case.groups) + 1)
    for index, group in enumerate(case.groups):
        call = call_of(group)
        gemm = as_gemm(call) if call and ceilings else None
        if ceilings is None or gemm is None or gemm.by_batch or gemm.m != padding.rows:
            continue
        gone = (padding.rows - padding.live) * (gemm.k + gemm.n) * ACTIVATION_BYTES
        few = Work(max(gemm.bytes - gone, 0), gemm.work.flops * padding.share, gemm.multiply_dtype)
        left[index] = ceilings.call_floor(few)[0] / ceilings.call_floor(gemm.work)[0]
    return left


def _experts_left(case: Case, experts_us: float, padding: Padding) -> float:
    """Return the fraction of the experts' time that the live rows need; 1 if the padded ones are masked already.

    They are masked if the weights that all rows would hit could not even be read in the time that was taken.
    """
    ceilings, weights = Ceilings.of(case.gpu), case.deployment.weights
    experts = (weight for weight in weights if weight.component is Component.EXPERTS and not weight.is_derived)
    all_rows = Work(sum(weight.bytes * weight.count for weight in experts) * padding.hit(padding.rows))
    if ceilings is not None and experts_us < ceilings.floor(all_rows)[0]:
        return 1.0
    return padding.hit(padding.live) / padding.hit(padding.rows)
