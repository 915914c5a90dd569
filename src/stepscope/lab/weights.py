"""Random weights by seed, of the shapes that one rank holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

import torch

from stepscope.model import Component, Parallel, rank_weights

if TYPE_CHECKING:
    from stepscope.model import ModelSpec, Weight

Tensors = dict[str, torch.Tensor]

_UNUSED = {"q_a_proj", "kv_a_proj", "kv_b_proj", "index_k_norm"}
"""What the absorbed form joins or splits, and the sparse index, which dense attention has no use for."""


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a rank; layers may share theirs."""

    outside: Tensors
    """Embedding, final norm and LM head."""
    layers: tuple[Tensors, ...]


def make_weights(  # noqa: PLR0913 -- what decides the numbers
    spec: ModelSpec, tp: int, device: torch.device, dtype: torch.dtype, *, sets: int | None = None, seed: int = 0
) -> Weights:
    """Return weights that are the same for a seed and a kind of device, whatever else is switched on.

    Args:
        spec: the model, with the layers that run.
        tp: ranks that it is split over.
        device: where they go.
        dtype: their type; the router's, too.
        sets: layers of a kind with weights of their own; the others take turns in sharing them.
        seed: of the random numbers.

    Raises:
        UsageError: the model does not divide by the ranks.
    """
    outside: Tensors = {}
    layers: list[Tensors] = [{} for _ in spec.layers]
    for weight in rank_weights(spec, Parallel(tp)):
        if weight.name in _UNUSED or weight.component is Component.INDEX:
            continue
        if not weight.layers:
            outside[weight.name] = _draw(weight, 0, seed, device, dtype)
        distinct = min(sets or len(weight.layers), len(weight.layers))
        drawn = [_draw(weight, index, seed, device, dtype) for index in range(distinct)]
        for turn, layer in enumerate(weight.layers):
            layers[layer][weight.name] = drawn[turn % distinct]
    return Weights(outside, tuple(layers))


def _draw(weight: Weight, index: int, seed: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Draw a weight that keeps the scale of what it multiplies.

    Attention's linear weights are powers of two times e4m3 values, so that a quantised copy holds them exactly.
    """
    generator = torch.Generator(device).manual_seed(crc32(f"{seed} {weight.name} {index}".encode()))
    drawn = torch.empty(weight.shape, device=device, dtype=dtype).normal_(generator=generator)
    if weight.component is Component.NORM:
        return drawn.mul_(0.1).add_(1)
    if weight.component is Component.EMBEDDING:
        return drawn
    inputs = weight.shape[-2] if weight.name == "w_kc" else weight.shape[-1]
    inputs = weight.shape[-2] if weight.name == "w_vc" else inputs
    if weight.component is Component.ATTENTION:
        return drawn.to(torch.float8_e4m3fn).to(dtype).mul_(2.0 ** round(-math.log2(inputs) / 2))
    return drawn.mul_(inputs**-0.5)
