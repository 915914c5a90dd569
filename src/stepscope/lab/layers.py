"""The decoder: layers of attention and feed-forward between an embedding and an LM head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from stepscope.lab.attention import MLAAttention, Step
from stepscope.lab.moe import MLP, MoE
from stepscope.model import Mla

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.lab.engine import Engine
    from stepscope.lab.parts import Parts
    from stepscope.lab.pool import View
    from stepscope.lab.weights import Tensors, Weights
    from stepscope.model import ModelSpec

ROPE_BASE = 10_000.0


class DecoderLayer(torch.nn.Module):
    """Attention, then MLP or experts; `reduce` adds up the ranks' shares after each."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Tensors,
        pool: torch.Tensor,
        parts: Parts,
        reduce: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        super().__init__()
        if not isinstance(spec.attention, Mla) or spec.experts is None:
            raise TypeError("the engine runs latent attention and experts")  # LabConfig.spec refuses it before
        self.input_norm, self.post_attention_norm = weights["input_norm"], weights["post_attention_norm"]
        self.attention = MLAAttention(spec.attention, weights, pool, parts)
        self.mlp = (
            MoE(spec.experts.per_token, weights, parts)
            if "router" in weights
            else MLP(weights["dense_w13"], weights["dense_w2"], parts)
        )
        self.parts, self.reduce = parts, reduce

    def forward(self, x: torch.Tensor, residual: torch.Tensor, step: Step) -> torch.Tensor:
        """Return what is to be added to the residual, [rows, hidden], which holds all that came before x."""
        x = self.parts.add_rms_norm(x, residual, self.input_norm)
        x = self.reduce(self.attention(x, step))
        x = self.parts.add_rms_norm(x, residual, self.post_attention_norm)
        return self.reduce(self.mlp(x))


class Model(torch.nn.Module):
    """Tokens to logits of the vocabulary's slice on this rank."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        pools: list[torch.Tensor],
        parts: Parts,
        reduce: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        super().__init__()
        self.parts = parts
        self.embedding, self.lm_head = weights.outside["embedding"], weights.outside["lm_head"]
        self.final_norm = weights.outside["final_norm"]
        self.layers = torch.nn.ModuleList(
            DecoderLayer(spec, own, pool, parts, reduce) for own, pool in zip(weights.layers, pools, strict=True)
        )

    def forward(self, tokens: torch.Tensor, view: View, angles: torch.Tensor, engine: Engine) -> torch.Tensor:
        """Return the logits of each request's last token: [requests, new tokens] → [requests, vocabulary].

        Args:
            tokens: the new ones of each request.
            view: what the step sees of the pool.
            angles: of every position there is.
            engine: the one that runs this, for what its host does by layer.
        """
        step = Step(view, angles[view.positions.flatten()])
        residual = self.embedding[tokens.flatten()]
        x = torch.zeros_like(residual)
        for layer in self.layers:
            self.parts.in_layer(engine)
            x = layer(x, residual, step)
        x = self.parts.add_rms_norm(x, residual, self.final_norm)
        return self.parts.logits(x.view(*tokens.shape, -1), self.lm_head)


def rope_angles(rope: int, positions: int, device: torch.device) -> torch.Tensor:
    """Return cosine and sine of each pair of values at each position: [positions, 2, rope / 2], float32."""
    frequencies = ROPE_BASE ** (-torch.arange(0, rope, 2, dtype=torch.float64) / rope)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin()), 1).float().to(device)
