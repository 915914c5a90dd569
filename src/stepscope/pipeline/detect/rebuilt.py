"""Work of a phase that writes weights anew: known by its shape, or by its size right before a GEMM."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from stepscope import units
from stepscope.document import Confidence
from stepscope.dtypes import item_bytes, torch_name
from stepscope.kernel_name import LOOKED_AT
from stepscope.pipeline.cost import Transfer
from stepscope.pipeline.detect.neighbours import next_on_stream
from stepscope.pipeline.detect.weights import KnownWeights
from stepscope.pipeline.link import NONE
from stepscope.pipeline.whatif import chains

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.detect.placement import Placement
    from stepscope.pipeline.detect.rule import Case
    from stepscope.pipeline.detect.weights import NamedWeight

    Bools = NDArray[np.bool_]

MIN_ELEMENTS = 1 << 19
"""A weight of 0.5 Mi elements is 1 MiB in 16 bits: to write a smaller one takes about a µs."""
VALUES_A_WORD = 8
"""Of 4 bits, as a packed weight is recorded."""
MAKES = {"cast", "copy", "quantise"}
"""Kernel classes that make a weight out of what is stored; a multiplication alone is not taken for that."""
SCALES = {"elementwise"}
GEMMS = {"gemm", "moe-gemm"}
_DEQUANTISES = re.compile(r"dequanti[sz]e|weight_dequant|dequant_\w*cache", re.IGNORECASE)
_OF_CACHE = re.compile(r"dequant\w*(?:cache|kv)", re.IGNORECASE)
_OF_TYPE = re.compile(r"Functor\w*<([\w:]+)")


@dataclass(frozen=True, slots=True)
class Part:
    """Kernels of one group that make a weight, or scale what was made."""

    group: WorkGroup
    weight: NamedWeight | None
    """None: the kernel's name alone tells that it dequantises."""

    @property
    def makes(self) -> bool:
        """Whether it makes a weight of what is stored."""
        return self.group.kernel_class in MAKES

    @property
    def is_sure(self) -> bool:
        """Whether its recorded shape tells the weight."""
        return self.weight is not None and self.weight.from_shape

    @property
    def transfer(self) -> Transfer | None:
        """What it reads and writes; None where its types are not known."""
        moved, dtypes = self.group.moved, self.group.input_dtypes
        named = _OF_TYPE.search(self.group.kernel[:LOOKED_AT])
        target = moved.target_dtype if moved else next(iter(dtypes or ()), None)
        target = target or (torch_name(named[1]) if named else None)
        if self.weight is None or target is None:
            return None
        return Transfer(self.weight.elements, (moved and moved.source_dtype) or target, target)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What rebuilds weights in the steps of a phase."""

    rows: Bools
    """Shape [kernels]."""
    parts: Sequence[Part]
    """Of these kernels, those with the most of their time first."""

    @classmethod
    def of(cls, case: Case, placement: Placement) -> Self:
        """Find the work on recorded shapes of weights, and what leads from stored weights to a GEMM."""
        known = KnownWeights.of(case)
        parts = {id(group): part for group in case.groups if (part := _part(case, known, group))}
        sure = placement.where(lambda group: id(group) in parts and parts[id(group)].is_sure)
        rows = sure | before_gemms(case, placement, placement.where(lambda group: id(group) in parts))
        found = placement.parts_of(rows)
        return cls(rows, [Part(group, parts[id(placement.whole(group))].weight) for group in found])

    @property
    def confidence(self) -> Confidence:
        """How sure it is that the largest part is of a weight."""
        if self.parts[0].weight is None:
            return Confidence.LOW
        return Confidence.HIGH if self.parts[0].is_sure else Confidence.MEDIUM

    @property
    def written_bytes_per_step(self) -> int:
        """What is made of stored weights in a step, where its types are known."""
        made = [(part.group.calls_per_step, part.transfer) for part in self.parts if part.makes]
        return round(
            sum(calls * moved.elements * item_bytes(moved.target_dtype) for calls, moved in made if moved is not None)
        )

    def notes(self) -> Iterator[str]:
        """Yield what part of it only scales, and how the weights are known."""
        makes = [part for part in self.parts if part.makes]
        scales_us = sum(part.group.time_us_per_step for part in self.parts if not part.makes)
        if scales_us:
            scaled = f"{units.time(scales_us)} a step of it multiply what was converted by its scales"
            yield f"{scaled}, or change it otherwise."
        if any(part.weight is None for part in makes):
            yield "That a kernel dequantises weights is read off its name, and off the GEMM that follows it."
        elif not all(part.is_sure for part in makes):
            yield "Which weights they are is read off the launches' sizes, and off the GEMMs that follow them."


def dequantises(group: WorkGroup) -> bool:
    """Tell whether its name tells that it dequantises what is stored: weights, or the cache."""
    return bool(_DEQUANTISES.search(group.kernel[:LOOKED_AT]))


def may_be_weights(case: Case, placement: Placement) -> Bools:
    """Return the large kernels without a shape that lead to a GEMM, whatever they write; shape [kernels]."""

    def is_large(group: WorkGroup) -> bool:
        large = group.written is not None and group.written[0] >= MIN_ELEMENTS
        return large and group.kernel_class in MAKES | SCALES and group.is_repeated and _shape(group) is None

    return before_gemms(case, placement, placement.where(is_large))


def before_gemms(case: Case, placement: Placement, rows: Bools) -> Bools:
    """Return those of the rows that follow each other, from one that makes a weight to a GEMM; shape [kernels]."""
    makes = placement.where(lambda group: group.kernel_class in MAKES)
    gemm = placement.where(lambda group: group.kernel_class in GEMMS)
    chain, follows = chains(case.linked, rows, placement.step), next_on_stream(case.linked)
    mine = np.flatnonzero(rows)
    first = mine[np.unique(chain[mine], return_index=True)[1]]
    ends = rows & (follows != NONE) & gemm[follows]
    whole: Bools = np.isin(chain, chain[first[makes[first]]]) & np.isin(chain, chain[ends])
    return whole


def _part(case: Case, known: KnownWeights, group: WorkGroup) -> Part | None:
    if group.kernel_class not in MAKES | SCALES or not group.is_repeated:
        return None
    if group.calls_per_step < 2 and len(group.steps) < 2:
        return None
    shape = _shape(group)
    weight = known.of_launch(group) if shape is None else known.of_shape(shape)
    if weight is not None:
        return Part(group, weight) if weight.elements >= MIN_ELEMENTS else None
    named = dequantises(group) and not _OF_CACHE.search(group.kernel[:LOOKED_AT])
    large = shape is None or prod(shape) >= MIN_ELEMENTS // VALUES_A_WORD
    return Part(group, None) if named and large and case.phase == "decode" else None


def _shape(group: WorkGroup) -> tuple[int, ...] | None:
    """Return the recorded shape of what is written: of a copy, or of the largest input; None: not recorded."""
    if group.moved is not None and group.moved.shape is not None:
        return group.moved.shape
    return tuple(max(group.input_shapes, key=prod)) if group.input_shapes else None
