"""Which weight of the model a piece of work reads or writes as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from stepscope.model import How, match_elements, match_shape
from stepscope.pipeline.cost.ops import as_gemm, call_of
from stepscope.pipeline.detect.batch import batch_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from stepscope.model import Weight
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.detect.rule import Case

    Shape = tuple[int, ...]

MOST_ROWS_A_TOKEN = 16
"""A token has one row in most activations, and one for each of its experts in some."""
MOST_HIDDEN_A_TOKEN = 16
"""A token's widest activations, those of all heads or of all its experts, are so many times as wide as its hidden
state at most: absorbed queries of 128 heads are 10 times."""


def weights_of_shape(weights: Sequence[Weight], shape: Sequence[int]) -> list[Weight]:
    """Return the weights that have a shape, be it transposed, permuted or with axes joined."""
    return [match.weight for match in match_shape(weights, shape, least=How.FLATTENED)]


def weights_name(candidates: Sequence[Weight]) -> str | None:
    """Return what a finding calls a tensor that is one of these weights; None: of none."""
    if len(candidates) > 1:
        return f"weight {' or '.join(weight.name for weight in candidates)}, {candidates[0].elements:,} elements"
    return f"weight {candidates[0].name} {list(candidates[0].shape)}" if candidates else None


def is_new_in_each_step(shape: Shape, following: set[int], *, is_weights: bool) -> bool:
    """Tell whether a shape is one of activations: a size that follows the batch is among its leading ones.

    Args:
        shape: of a tensor.
        following: sizes that follow the batch.
        is_weights: whether a weight has that shape, too.
    """
    if not shape:
        return True
    leading = shape[:-1] or shape
    rows = prod(leading)
    if is_weights:  # experts and heads come first in a weight, and may be as many as there are requests
        return len(shape) < 3 and (shape[0] in following or rows in following)
    several = following - {1}
    repeated = any(rows % size == 0 and rows // size <= MOST_ROWS_A_TOKEN for size in several)
    return shape[0] in following or rows in following or repeated or any(size in several for size in leading[1:])


def may_be_activation(case: Case, elements: int) -> bool:
    """Tell whether activations of the step's tokens may have so many elements; they may where these are not known."""
    spec, step = case.deployment.spec, case.step
    tokens = max(step.tokens or 0, step.batch_size or 0)
    return spec is None or not tokens or elements <= MOST_HIDDEN_A_TOKEN * spec.hidden_size * tokens


@dataclass(frozen=True, slots=True)
class NamedWeight:
    """A weight, or several that are told apart by nothing that is known."""

    name: str
    elements: int
    shape: Shape | None
    """As recorded, or else the model's; None where several weights have as many elements."""
    from_shape: bool
    """Whether a recorded shape tells it; else the size of a launch does."""


@dataclass(frozen=True)
class KnownWeights:
    """The weights of a phase: those of the model, and what its GEMMs multiply by."""

    case: Case
    multiplied: frozenset[Shape]
    """Shapes of the second factors of GEMMs that do not go by head, the smaller size first."""

    @classmethod
    def of(cls, case: Case) -> Self:
        """Collect them."""
        calls = [call for group in case.groups if (call := call_of(group)) is not None]
        gemms = [gemm for call in calls if (gemm := as_gemm(call)) is not None and not gemm.by_batch]
        return cls(case, frozenset((min(gemm.n, gemm.k), max(gemm.n, gemm.k)) for gemm in gemms))

    @cached_property
    def following(self) -> set[int]:
        """Sizes that follow the batch."""
        return batch_sizes(self.case)

    def of_shape(self, shape: Shape) -> NamedWeight | None:
        """Return the weight of a recorded shape; None for an activation, and for what is not known."""
        candidates = weights_of_shape(self.case.deployment.weights, shape)
        sizes = tuple(sorted(size for size in shape if size != 1))
        if not candidates and sizes not in self.multiplied:
            return None
        is_transposed = len(sizes) < 3 and not (self.following - {1}).isdisjoint(sizes)
        if is_transposed or is_new_in_each_step(shape, self.following, is_weights=True):
            return None
        return NamedWeight(weights_name(candidates) or f"weight {list(shape)}", prod(shape), shape, from_shape=True)

    def of_launch(self, group: WorkGroup) -> NamedWeight | None:
        """Return the model's weight of which a launch writes each element; None for what may be an activation."""
        written = group.written
        if written is None or may_be_activation(self.case, written[0]):
            return None
        candidates = match_elements(self.case.deployment.weights, *written)
        name, shape = weights_name(candidates), candidates[0].shape if len(candidates) == 1 else None
        return NamedWeight(name, candidates[0].elements, shape, from_shape=False) if name else None
