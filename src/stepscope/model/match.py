"""Which tensor of the model a shape is: every tensor that explains it, the best explanation first."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.model.catalogue import Weight

    Shape = tuple[int, ...]

_PADDED_TO = (8, 16, 32, 64, 128, 256, 512)
"""Multiples that engines round a width up to."""
_LEAST_WIDTH = 64
"""A slice must keep an axis at least this long, or chance makes it fit."""


class How(IntEnum):
    """How a tensor explains a shape; the smaller, the stronger."""

    EXACT = 0
    TRANSPOSED = 1
    PERMUTED = 2
    FLATTENED = 3
    PADDED = 4
    SLICED = 5
    ELEMENTS = 6

    @property
    def words(self) -> str:
        """The explanation for people."""
        return {
            How.EXACT: "the same shape",
            How.TRANSPOSED: "transposed",
            How.PERMUTED: "its axes in another order",
            How.FLATTENED: "axes joined",
            How.PADDED: "padded",
            How.SLICED: "a slice of it",
            How.ELEMENTS: "as many elements",
        }[self]


@dataclass(frozen=True, slots=True)
class Match:
    """A tensor that explains a shape."""

    weight: Weight
    how: How


def match_shape(weights: Sequence[Weight], shape: Sequence[int], *, least: How = How.SLICED) -> list[Match]:
    """Return the weights that explain a shape equally well: several are a tie, none where nothing fits.

    Args:
        weights: those on the rank.
        shape: of a recorded tensor.
        least: the weakest explanation that counts.

    Axes of length 1 do not count, nor do norms and biases, which are as long as a row of
    activations. A weight is compared as it is multiplied by, [out, in], and as it is stored, such as two 4-bit values
    a byte.
    """
    wanted = _squeezed(shape)
    if not wanted or 0 in wanted:  # a single number, or an empty tensor
        return []
    matrices = [weight for weight in weights if weight.is_matrix]
    found = [Match(weight, how) for weight in matrices if (how := _explains(weight, wanted)) is not None]
    return _best([match for match in found if match.how <= least])


def match_elements(weights: Sequence[Weight], low: int, high: int) -> list[Weight]:
    """Return the weights whose number of elements lies in [low, high], as a launch's grid bounds it.

    Norms and biases do not count.
    """
    return [weight for weight in weights if weight.is_matrix and low <= weight.elements <= high]


def _best(found: Sequence[Match]) -> list[Match]:
    """Return the strongest matches; a weight of its own comes before one that is derived from others."""
    ranked = sorted(found, key=lambda match: (match.how, match.weight.is_derived))
    return [
        match
        for match in ranked
        if (match.how, match.weight.is_derived) == (ranked[0].how, ranked[0].weight.is_derived)
    ]


def _explains(weight: Weight, wanted: Shape) -> How | None:
    candidates = {_squeezed(weight.shape), *(_squeezed(tensor.shape) for tensor in weight.stored)}
    return min((how for shape in candidates for how in _ways(shape, wanted)), default=None)


def _ways(shape: Shape, wanted: Shape) -> Iterator[How]:
    """Yield the ways in which a tensor of this shape explains the wanted one."""
    if shape == wanted:
        yield How.EXACT
    elif len(shape) >= 2 and (*shape[:-2], shape[-1], shape[-2]) == wanted:
        yield How.TRANSPOSED
    elif sorted(shape) == sorted(wanted):
        yield How.PERMUTED
    elif prod(shape) == prod(wanted):
        yield How.FLATTENED if _joins(shape, wanted) else How.ELEMENTS
    elif len(shape) == len(wanted):
        changed = [(own, other) for own, other in zip(shape, wanted, strict=True) if own != other]
        if all(other in {-(-own // step) * step for step in _PADDED_TO} for own, other in changed):
            yield How.PADDED
        elif len(changed) == 1 and len(shape) > 1 and _is_slice(*changed[0], shape):
            yield How.SLICED


def _joins(shape: Shape, wanted: Shape) -> bool:
    """Tell whether `wanted` is `shape` with neighbouring axes joined."""
    if len(wanted) >= len(shape):
        return False
    axes = iter(shape)
    for size in wanted:
        joined = 1
        while joined < size:
            joined *= next(axes, size + 1)
        if joined != size:
            return False
    return True


def _is_slice(whole: int, part: int, shape: Shape) -> bool:
    return part < whole and whole % part == 0 and prod(shape) // whole >= _LEAST_WIDTH


def _squeezed(shape: Sequence[int]) -> Shape:
    return tuple(size for size in shape if size != 1)
