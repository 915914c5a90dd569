"""The sampler sorts the whole vocabulary and adds it up, though only the likeliest token is wanted.

Softmax, sort, running sum, mask and scatter over [batch, vocabulary] in float32 stand after the LM head, as top-p
samplers have them that do not look at what was asked for (vllm#11394, #32558).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.lab.slowdowns import Slowdown

if TYPE_CHECKING:
    import torch

    from stepscope.lab.parts import Parts

_TOP_P = 0.9


def _sort_then_choose(logits: torch.Tensor) -> torch.Tensor:
    probabilities, tokens = logits.float().softmax(-1).sort(-1, descending=True)
    before = probabilities.cumsum(-1) - probabilities
    kept = probabilities.masked_fill(before > _TOP_P, 0.0)
    kept = kept / kept.sum(-1, keepdim=True)
    return kept.new_zeros(kept.shape).scatter_(-1, tokens, kept).argmax(-1)


def _apply(parts: Parts) -> Parts:
    return replace(parts, sample=_sort_then_choose)


SLOWDOWN = Slowdown(rule="slow-sampling", apply=_apply)
