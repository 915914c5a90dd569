"""Attention's weights stay quantised, and every step converts and scales them anew before it multiplies.

A weight never changes, so that once after loading is enough; here a copy and a multiplication of the weight's shape
stand before each product (sglang#34305, vllm#42982).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from stepscope.lab.slowdowns import Slowdown

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST = 256.0
"""What a row's largest value becomes at most in e4m3, which reaches 448."""


def _dequantise_and_multiply(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    largest = weight.abs().amax(1, keepdim=True).float()
    scale = torch.exp2(torch.ceil(torch.log2(largest / _LARGEST))).to(weight.dtype)
    quantised = (weight / scale).to(torch.float8_e4m3fn)

    def multiply(x: torch.Tensor) -> torch.Tensor:
        dequantised = quantised.to(x.dtype) * scale
        return x @ dequantised.t()

    return multiply


SLOWDOWN = Slowdown(
    rule="weight-rematerialised",
    also=("redundant-cast",),
    apply=lambda parts: replace(parts, linear=_dequantise_and_multiply),
)
