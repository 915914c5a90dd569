"""The multiplications of a phase, each beside what a good kernel takes for it, and would take in 16 bits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from stepscope.kernel_name import LOOKED_AT
from stepscope.pipeline.cost import Bound, Ceilings
from stepscope.pipeline.cost.ops import as_gemm, call_of
from stepscope.pipeline.efficiency import Examination, PhaseWork

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.cost import Work
    from stepscope.pipeline.cost.ops import Gemm
    from stepscope.pipeline.detect.placement import Placement
    from stepscope.pipeline.detect.rule import Case
    from stepscope.pipeline.efficiency import Worked

LATENCY_US = 3.0
"""What a kernel takes besides its bytes and operations: products of next to nothing take 2.4 to 3.7 µs on an H200."""
REACHED = 0.8
"""Of a measured rate: the LM head of the laboratory, 238 MB, reads at 0.90 of it, an int4 one of 346 MB at 0.95."""
REACHED_OF_DATASHEET = 0.6
"""Of a rate that was not measured: an H100's large GEMMs reach 0.59 to 0.68 of it, an MI300X's 0.35 to 0.60."""
SLOWER = 1.15
"""What counts as slower than in 16 bits; published cases with both take 1.2 to 2 times as long (flashinfer#1753, #3484,
vllm#49723)."""
LEAST_SHARE = 0.002
"""Multiplications below this share of the kernels' time are not looked at one by one."""
FULL_PRECISION = {"Float", "Double"}
"""Types that the rates at hand are not of."""


@dataclass(frozen=True, slots=True)
class Multiplication:
    """Calls of one op on the same inputs, or the attention of a step."""

    worked: Worked
    us: float
    """What a call takes: its kernels, where nothing else runs beside them."""
    floor_us: float
    """The least time of a call."""
    bound: Bound
    good_us: float
    """What a good kernel takes for a call."""
    in_16_bits_us: float | None
    """What a good kernel would take in 16 bits; None: it is in 16 bits."""
    tensor: str | None

    @property
    def is_slower_than_in_16_bits(self) -> bool:
        """Whether a good kernel in 16 bits would be faster, sizes apart that say nothing."""
        return self.in_16_bits_us is not None and self.us >= SLOWER * self.in_16_bits_us

    @property
    def main(self) -> WorkGroup:
        """The longest of its kernels."""
        return self.worked.kernels[0]

    @property
    def gemm(self) -> Gemm | None:
        """What its op multiplies; None where it is no plain multiplication."""
        call = call_of(self.main)
        return as_gemm(call) if call else None

    @property
    def work(self) -> Work:
        """That of a call."""
        return self.worked.work


@dataclass(frozen=True, slots=True)
class Judge:
    """What the multiplications of a phase are judged by."""

    case: Case
    ceilings: Ceilings
    own_us: NDArray[np.float64]
    """Shape [kernels]: for how long each runs by itself."""

    @classmethod
    def of(cls, case: Case, placement: Placement) -> Judge | None:
        """Return it; None where the GPU's rates are not known."""
        ceilings = Ceilings.of(case.gpu)
        return None if ceilings is None else cls(case, ceilings, _by_itself(placement))

    def multiplications(self, classes: Collection[str]) -> Iterator[Multiplication]:
        """Yield the multiplications whose kernels are of some classes, each once, the longest first."""
        case = self.case
        phase = PhaseWork(case.linked, case.groups, case.step, case.deployment)
        today, in_16_bits = Examination(phase), Examination(phase, in_16_bits=True)
        total = sum(group.time_us_per_step for group in case.groups)
        seen: set[int] = set()
        for group in case.groups:
            if group.kernel_class not in classes or id(group) in seen:
                continue
            if group.time_us_per_step < LEAST_SHARE * total or not group.is_repeated:
                continue
            worked = today.worked(group)
            if worked is None or not worked.per_step or worked.work.multiply_dtype in FULL_PRECISION:
                continue
            seen.update(map(id, worked.kernels))
            yield self._judged(worked, in_16_bits.worked(group), today.tensor(group))

    def _judged(self, worked: Worked, in_16_bits: Worked | None, tensor: str | None) -> Multiplication:
        floor_us, bound = worked.floor(self.ceilings)
        us = sum(self.own_us_per_step(group) for group in worked.kernels)
        return Multiplication(
            worked,
            us / worked.per_step,
            floor_us / worked.per_step,
            bound,
            self._good_us(worked),
            self._good_us(in_16_bits) if in_16_bits else None,
            tensor,
        )

    def own_us_per_step(self, group: WorkGroup) -> float:
        """Return the µs of a step for which kernels of a group run by themselves."""
        return float(np.median(self.own_us[group.rows])) * group.calls_per_step

    def _good_us(self, worked: Worked) -> float:
        floor_us, bound = worked.floor(self.ceilings)
        is_measured = self.ceilings.is_measured(bound, worked.work.multiply_dtype)
        kernels = sum(group.calls_per_step for group in worked.kernels) / worked.per_step
        reached = REACHED if is_measured else REACHED_OF_DATASHEET
        return floor_us / worked.per_step / reached + kernels * LATENCY_US


def is_determined(found: Multiplication) -> bool:
    """Tell whether shapes determine the work of a call on weights.

    Which experts the rows of a batch hit is not recorded, but for a single row. Products by batch are attention's, or
    sums of what experts return.
    """
    if found.gemm is not None:
        return not found.gemm.by_batch
    shapes = found.main.input_shapes
    return next(iter(shapes or ()), [])[:1] == [1]


def blocks(found: Multiplication) -> int | None:
    """Return the blocks of its longest kernel; None: not recorded."""
    return None if found.main.grid is None else prod(found.main.grid)


_MADE_FOR = re.compile(r"(?:sm|cutlass)_?(?P<sm>[789]\d|1[0-2]\d)(?!\d)|(?P<name>volta|turing|ampere)_|(?P<wmma>wmma)")
_GENERATIONS = {"volta": 7, "turing": 7, "ampere": 8}
_OLD_LIBRARIES = re.compile(r"marlin", re.IGNORECASE)


def made_for(kernel: str) -> int | None:
    """Return the compute capability's first number that a kernel was made for, as its name tells: 8 of Ampere's."""
    name = kernel[:LOOKED_AT]
    found = _MADE_FOR.search(name)
    if found is None:
        return 8 if _OLD_LIBRARIES.search(name) else None
    if found["sm"]:
        return int(found["sm"]) // 10
    return _GENERATIONS[found["name"]] if found["name"] else 8


def _by_itself(placement: Placement) -> NDArray[np.float64]:
    """Return for how long each kernel of the steps runs by itself: not before it alone is left, nor once another began.

    Kernels that run beside each other share the memory's rate, and one that starts early waits for the one before it.
    """
    own = np.zeros(placement.start.shape)
    rows = np.flatnonzero(placement.step >= 0)
    rows = rows[np.lexsort((placement.end[rows], placement.start[rows]))]
    start, end = placement.start[rows], placement.end[rows]
    before = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]))
    after = np.concatenate((start[1:], [np.iinfo(np.int64).max]))
    own[rows] = np.maximum(np.minimum(end, after) - np.maximum(start, before), 0) / 1e3
    return own
