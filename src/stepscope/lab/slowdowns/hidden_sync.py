"""The host asks the GPU for a number that it could know, and so waits for all queued work.

Before each step the longest request's length is read with `item()`, and eager attention asks again in every layer, as
backends do that plan by `max_seqlen` (sglang#31468, #27689, vllm#38047). The host cannot run ahead any more, and the
GPU is idle after each answer until new work arrives. A graph cannot be captured with a read inside, so there it is
only the one before the step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from stepscope.lab.slowdowns import Slowdown

if TYPE_CHECKING:
    from stepscope.lab.engine import Engine
    from stepscope.lab.parts import Parts


def _ask_longest(engine: Engine) -> None:
    engine.pool.lengths.max().item()


def _ask_in_layer(engine: Engine) -> None:
    if not (engine.device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        _ask_longest(engine)


def _apply(parts: Parts) -> Parts:
    return replace(parts, before_step=_ask_longest, in_layer=_ask_in_layer)


SLOWDOWN = Slowdown(rule="hidden-sync", apply=_apply)
