"""What a format is: the tensors that it makes of one weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from stepscope.dtypes import item_bytes

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor as it lies in memory."""

    name: str
    shape: Shape
    dtype: str
    """As torch writes it."""

    @property
    def bytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * item_bytes(self.dtype)


Split = Callable[[str, Shape], tuple[Stored, ...]]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A way to store the weight of a linear layer, [.., out, in]; formats of one name are the same."""

    name: str
    bits: float
    """Bits a weight takes, the scales of its blocks included; what a whole row or tensor shares is not."""
    multiply_dtype: str = field(compare=False)
    """Type whose matrix rate of the GPU bounds the multiplication: BFloat16 where only the weights are narrow."""
    split: Split = field(compare=False, repr=False)
    """Returns what is stored for a weight of this name and shape."""


def plain(dtype: str) -> Split:
    """Return the split of a format that keeps a weight as it is."""

    def split(name: str, shape: Shape) -> tuple[Stored, ...]:
        return (Stored(name, shape, dtype),)

    return split


BF16 = WeightFormat("bf16", 16, "BFloat16", plain("BFloat16"))
FP16 = WeightFormat("fp16", 16, "BFloat16", plain("Half"))
"""Multiplied at the rate of BFloat16, which every GPU with both has."""
