"""The LM head multiplies every token of a prompt's chunk, and all but the last row is thrown away.

Only the last token of a request is sampled from; the rest costs vocabulary × width operations a token (GR00T#734). It
shows only where a step adds several tokens to a request.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.lab.slowdowns import Slowdown

if TYPE_CHECKING:
    import torch

    from stepscope.lab.parts import Parts


def _all_logits(hidden: torch.Tensor, lm_head: torch.Tensor) -> torch.Tensor:
    return (hidden @ lm_head.t())[:, -1]


def _apply(parts: Parts) -> Parts:
    return replace(parts, logits=_all_logits)


SLOWDOWN = Slowdown(rule="lm-head-all-tokens", apply=_apply, modes=("eager",))
