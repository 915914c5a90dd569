"""Each product by head has its input and its result copied into another layout.

cuBLAS could read and write the rows where they lie; `contiguous` before and a copy after it move as many bytes as the
batch has rows, twice a product and four times a layer (sglang#24405, Megatron#6064). With a single row torch knows
that nothing has to move, and there is nothing to see.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from stepscope.lab.slowdowns import Slowdown

if TYPE_CHECKING:
    from stepscope.lab.parts import Parts


def _copied_around(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    heads_first = torch.bmm(x.transpose(0, 1).contiguous(), weight)
    out.copy_(heads_first.transpose(0, 1))


def _apply(parts: Parts) -> Parts:
    return replace(parts, per_head=_copied_around)


SLOWDOWN = Slowdown(rule="layout-copy", apply=_apply)
