"""The feed-forward part: a dense MLP, or routed experts beside a shared one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from stepscope.errors import PartNotInstalledError

if TYPE_CHECKING:
    from stepscope.lab.parts import Parts
    from stepscope.lab.weights import Tensors


if not hasattr(functional, "grouped_mm"):
    raise PartNotInstalledError(f"lab needs torch 2.10 or newer, not {torch.__version__}: pip install -U torch")


class MLP(torch.nn.Module):
    """Gate and up in one product, then down."""

    def __init__(self, w13: torch.Tensor, w2: torch.Tensor, parts: Parts) -> None:
        super().__init__()
        self.w13, self.w2, self.parts = w13, w2, parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] → [rows, hidden]."""
        return self.parts.silu_mul(x @ self.w13.t()) @ self.w2.t()


class MoE(torch.nn.Module):
    """Each token goes through the experts that its router scores highest, and through the shared one."""

    def __init__(self, per_token: int, weights: Tensors, parts: Parts) -> None:
        super().__init__()
        self.per_token, self.parts = per_token, parts
        self.router, self.w13, self.w2 = weights["router"], weights["w13"], weights["w2"]
        self.experts = torch.arange(len(self.router), device=self.router.device)
        self.shared = MLP(weights["shared_w13"], weights["shared_w2"], parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] → [rows, hidden]; rows are sorted by expert, and only experts that were hit are read."""
        weights, chosen = self.parts.route(x @ self.router.t(), self.per_token)
        in_order, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(in_order, self.experts, right=True, out_int32=True)
        inner = functional.grouped_mm(x[order // self.per_token], self.w13.transpose(1, 2), offs=ends)
        outer = functional.grouped_mm(self.parts.silu_mul(inner), self.w2.transpose(1, 2), offs=ends)
        by_token = self.parts.new(outer.shape, device=x.device, dtype=x.dtype).index_copy_(0, order, outer)
        routed = torch.bmm(weights[:, None], by_token.view(len(x), self.per_token, -1)).squeeze(1)
        return torch.add(routed, self.shared(x))
