"""How weights are stored: the tensors that a format makes of one weight, with their scales, and the bytes they take."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING

from stepscope.dtypes import item_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A way to store the weight of a linear layer, [.., out, in]."""

    name: str
    bits: float
    """Bits a weight takes, scales of blocks included."""
    multiply_dtype: str
    """Type whose matrix rate of the GPU bounds the multiplication."""
    split: Callable[[str, Shape], tuple[Stored, ...]]
    """Returns what is stored for a weight of this name and shape."""


def _plain(dtype: str) -> Callable[[str, Shape], tuple[Stored, ...]]:
    def split(name: str, shape: Shape) -> tuple[Stored, ...]:
        return (Stored(name, shape, dtype),)

    return split


def _fp8_block(name: str, shape: Shape) -> tuple[Stored, ...]:
    """DeepSeek's: one float32 scale for each block of 128 × 128 weights."""
    *outer, rows, columns = shape
    scales = (*outer, ceil(rows / 128), ceil(columns / 128))
    return Stored(name, shape, "Float8_e4m3fn"), Stored(f"{name}_scale_inv", scales, "Float")


def _nvfp4(name: str, shape: Shape) -> tuple[Stored, ...]:
    """ModelOpt's: two e2m1 values a byte, an e4m3 scale for 16, float32 scales for the whole and its input."""
    *outer, rows, columns = shape
    return (
        Stored(name, (*outer, rows, columns // 2), "Byte"),
        Stored(f"{name}_scale", (*outer, rows, columns // 16), "Float8_e4m3fn"),
        Stored(f"{name}_scale_2", tuple(outer), "Float"),
        Stored(f"{name}_input_scale", tuple(outer), "Float"),
    )


BF16 = WeightFormat("bf16", 16, "BFloat16", _plain("BFloat16"))
FP8 = WeightFormat("fp8", 8 + 32 / 128**2, "Float8_e4m3fn", _fp8_block)
NVFP4 = WeightFormat("nvfp4", 4.5, "Float4", _nvfp4)

_GGUF_BLOCKS: Mapping[str, tuple[int, int]] = {"Q4_0": (32, 18), "Q4_K": (256, 144), "Q8_0": (32, 34)}
"""Weights and bytes of a block, by type (ggml's block structs)."""


def gguf(kind: str) -> WeightFormat:
    """Return a format of GGUF; its blocks hold their scales.

    Raises:
        KeyError: there is no such type.
    """
    weights, size = _GGUF_BLOCKS[kind]

    def split(name: str, shape: Shape) -> tuple[Stored, ...]:
        return (Stored(name, (*shape[:-1], ceil(shape[-1] / weights) * size), "Byte"),)

    return WeightFormat(f"gguf:{kind}", size * 8 / weights, "BFloat16", split)


def format_names() -> list[str]:
    """Return the names that `find_format` takes."""
    return ["bf16", "fp8", "nvfp4", *(f"gguf:{kind}" for kind in _GGUF_BLOCKS)]


def find_format(name: str) -> WeightFormat:
    """Return a format by its name.

    Raises:
        KeyError: there is none of that name.
    """
    if name.startswith("gguf:"):
        return gguf(name.removeprefix("gguf:"))
    return {"bf16": BF16, "fp8": FP8, "nvfp4": NVFP4}[name]
