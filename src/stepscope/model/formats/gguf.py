"""GGUF's types: blocks of weights along the input, each with its scales inside."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from stepscope.model.formats.stored import Shape, Stored, WeightFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

_BLOCKS: Mapping[str, tuple[int, int]] = {
    "BF16": (1, 2),
    "F16": (1, 2),
    "F32": (1, 4),
    "IQ1_M": (256, 56),
    "IQ1_S": (256, 50),
    "IQ2_S": (256, 82),
    "IQ2_XS": (256, 74),
    "IQ2_XXS": (256, 66),
    "IQ3_S": (256, 110),
    "IQ3_XXS": (256, 98),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
    "MXFP4": (32, 17),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q4_K": (256, 144),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "Q8_0": (32, 34),
    "TQ1_0": (256, 54),
    "TQ2_0": (256, 66),
}
"""Weights and bytes of a block, by type: the block structs of ggml (`ggml-common.h`)."""

_RECIPES: Mapping[str, str] = {
    **{f"Q{bits}_K_{size}": f"Q{bits}_K" for bits in (2, 3, 4, 5) for size in ("S", "M", "L", "XL")},
    "IQ2_M": "IQ2_S",
    "IQ3_M": "IQ3_S",
    "IQ3_XS": "IQ3_S",
}
"""What `llama-quantize` calls a file in which several types stand, and the type of most of its weights."""


def gguf_types() -> list[str]:
    """Return the types that weights in GGUF files have."""
    return sorted(_BLOCKS)


def main_type(recipe: str) -> str | None:
    """Return the type of most weights in a file made by this recipe, such as `Q4_K_M`; None: it is no recipe."""
    return _RECIPES.get(recipe)


def gguf(kind: str) -> WeightFormat:
    """Return the format of a type.

    Raises:
        KeyError: there is no such type.
    """
    weights, size = _BLOCKS[kind]

    def split(name: str, shape: Shape) -> tuple[Stored, ...]:
        return (Stored(name, (*shape[:-1], ceil(shape[-1] / weights) * size), "Byte"),)

    return WeightFormat(f"gguf:{kind}", size * 8 / weights, "BFloat16", split)
