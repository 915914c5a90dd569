"""NVFP4 in numpy, as ModelOpt writes it: w = e2m1 · weight_scale · weight_scale_2.

Two e2m1 values lie in a byte, the even element in the low nibble; an e4m3 scale stands for 16 elements along the last
axis, a float32 scale for a whole matrix, so that the largest scale of a block is e4m3's largest number.
Sources: the OCP's 8-bit floating point specification (e4m3) and its microscaling formats (e2m1); ModelOpt's
`NVFP4QTensor`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK = 16
"""Elements that share a scale."""
E2M1_MAX = 6.0
E4M3_MAX = 448.0
_E4M3_NAN = 0x7F
_SMALLEST_SCALE = 2.0**-9
"""e4m3's smallest number: a block's scale is not rounded to 0, which would lose the block."""

_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
"""Values of the codes 0 to 7; bit 3 is the sign."""


def _e4m3_values() -> NDArray[np.float32]:
    """Return the values of the codes 0 to 127: 4 bits of exponent, 3 of mantissa; no infinity, the last is NaN."""
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    values = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    values[_E4M3_NAN] = np.nan
    return values.astype(np.float32)


_E4M3 = _e4m3_values()


class Nvfp4(NamedTuple):
    """A quantised weight [.., N, K]."""

    weight: NDArray[np.uint8]
    """[.., N, K / 2]: two e2m1 codes a byte."""
    weight_scale: NDArray[np.uint8]
    """[.., N, K / 16]: e4m3 codes."""
    weight_scale_2: NDArray[np.float32]
    """[..]: one for each matrix."""


def quantise(weight: NDArray[np.floating], weight_scale_2: NDArray[np.float32] | None = None) -> Nvfp4:
    """Quantise a weight.

    Args:
        weight: [.., N, K], K a multiple of 16, finite.
        weight_scale_2: [..], the scale of each matrix; None: from its own largest absolute value, amax / (6 · 448).

    Raises:
        ValueError: the shape does not fit, or a value is not finite.
    """
    if weight.ndim < 2 or weight.shape[-1] % BLOCK:
        raise ValueError(f"a weight is [.., N, K] with K a multiple of {BLOCK}, not {list(weight.shape)}")
    if not np.isfinite(weight).all():
        raise ValueError("the weight holds NaN or infinity")
    values = weight.astype(np.float32)
    if weight_scale_2 is None:
        amax = np.abs(values).max(axis=(-2, -1), initial=0)
        weight_scale_2 = (amax / np.float32(E2M1_MAX * E4M3_MAX)).astype(np.float32)
    elif weight_scale_2.shape != weight.shape[:-2]:
        raise ValueError(f"weight_scale_2 is {list(weight.shape[:-2])}, not {list(weight_scale_2.shape)}")
    of_matrix = weight_scale_2[..., None, None]
    blocks = values.reshape(*values.shape[:-1], values.shape[-1] // BLOCK, BLOCK)
    amax = np.abs(blocks).max(axis=-1)
    scale = np.ones_like(amax)  # of a block of zeros, as ModelOpt has it
    np.divide(amax, np.float32(E2M1_MAX) * of_matrix, out=scale, where=(amax > 0) & (of_matrix > 0))
    scale_code = encode_e4m3(np.maximum(scale, np.float32(_SMALLEST_SCALE)))
    divisor = (decode_e4m3(scale_code) * of_matrix)[..., None]
    scaled = np.divide(blocks, divisor, out=np.zeros_like(blocks), where=divisor > 0)
    codes = encode_e2m1(scaled).reshape(values.shape)
    return Nvfp4(codes[..., 0::2] | codes[..., 1::2] << np.uint8(4), scale_code, weight_scale_2)


def dequantise(quantised: Nvfp4) -> NDArray[np.float32]:
    """Return the weight [.., N, K] as float32.

    Raises:
        ValueError: the shapes do not belong to one weight.
    """
    packed, scale, of_matrix = quantised
    if packed.ndim < 2 or scale.shape != (*packed.shape[:-1], packed.shape[-1] * 2 / BLOCK):
        raise ValueError(f"weight {list(packed.shape)} and weight_scale {list(scale.shape)} do not fit")
    if of_matrix.shape != packed.shape[:-2]:
        raise ValueError(f"weight {list(packed.shape)} and weight_scale_2 {list(of_matrix.shape)} do not fit")
    codes = np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(*scale.shape, BLOCK)
    scales = (decode_e4m3(scale) * of_matrix[..., None, None])[..., None]
    return (decode_e2m1(codes) * scales).reshape(*packed.shape[:-1], packed.shape[-1] * 2)


def encode_e2m1(values: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Return the codes (0 to 15) of values, rounded to the nearest, ties to the even code, at most ±6."""
    return _nearest(np.abs(values), _E2M1) | (values < 0).astype(np.uint8) << np.uint8(3)


def decode_e2m1(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the values of codes 0 to 15."""
    return np.where(codes & 8, -_E2M1[codes & 7], _E2M1[codes & 7])


def encode_e4m3(values: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Return the codes of values, rounded to the nearest, ties to even, at most ±448; NaN stays NaN."""
    nearest = _nearest(np.abs(values), _E4M3[:_E4M3_NAN])
    sign: NDArray[np.uint8] = np.signbit(values).astype(np.uint8) << np.uint8(7)
    return np.where(np.isnan(values), np.uint8(_E4M3_NAN), nearest) | sign


def decode_e4m3(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the values of codes 0 to 255."""
    return np.where(codes & 0x80, -_E4M3[codes & 0x7F], _E4M3[codes & 0x7F])


def _nearest(magnitudes: NDArray[np.floating], grid: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the index of the nearest point of a grid, of two as near the even one; beyond its end, the last."""
    wide = grid.astype(np.float64)
    midpoints = (wide[:-1] + wide[1:]) / 2
    index = np.searchsorted(midpoints, magnitudes)  # a midpoint itself goes to the lower point
    tie = magnitudes == midpoints[np.minimum(index, midpoints.size - 1)]
    nearest: NDArray[np.uint8] = (index + (tie & (index % 2 == 1))).astype(np.uint8)
    return nearest
