"""Between two steps the host reads the tokens, and builds the block tables of the largest batch in Python.

The tables are as wide as the longest request that the server admits, not as the live ones, and are sent from pageable
memory (TensorRT-LLM#16313, vllm#6854). The GPU has nothing to do until they arrive.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from stepscope.lab.config import PAGE
from stepscope.lab.slowdowns import Slowdown

if TYPE_CHECKING:
    from stepscope.lab.engine import Engine
    from stepscope.lab.parts import Parts

_MOST_REQUESTS = 16
_MOST_TOKENS = 131_072


def _prepare(engine: Engine) -> None:
    tokens = engine.tokens[:, -1].tolist()
    width = _MOST_TOKENS // PAGE
    tables = []
    for request in range(_MOST_REQUESTS):
        first = tokens[request % len(tokens)]
        tables.append([(first + page) % engine.config.pool_slots for page in range(width)])
    torch.tensor(tables).to(engine.device)


def _apply(parts: Parts) -> Parts:
    return replace(parts, before_step=_prepare)


SLOWDOWN = Slowdown(rule="host-gap", apply=_apply)
