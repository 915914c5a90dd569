"""Before every step the allocator's cache is emptied, and the step allocates all of it again.

`cudaFree` waits for the GPU, and `cudaMalloc` holds the host up while nothing is queued (peft#2894). A graph has
memory of its own and is not touched.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from stepscope.lab.slowdowns import Slowdown

if TYPE_CHECKING:
    from stepscope.lab.engine import Engine
    from stepscope.lab.parts import Parts


def _empty_cache(_: Engine) -> None:
    torch.cuda.empty_cache()


def _apply(parts: Parts) -> Parts:
    return replace(parts, before_step=_empty_cache)


SLOWDOWN = Slowdown(rule="jit-or-allocator-in-step", apply=_apply, modes=("eager",))
