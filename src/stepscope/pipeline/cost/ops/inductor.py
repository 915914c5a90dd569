"""Kernels that torch.compile generates: every tensor that they are given once, read or written.

Inductor names a kernel after all ops that it fuses, views among them (torch/_inductor/codegen/triton.py). One whose
name says that it takes a part of a tensor, or that says nothing, may touch less than it is given, and is left out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.pipeline.cost.ops.call import Call

_GENERATED = re.compile(r"triton_(?:poi|per|red)_fused_[a-z_]*[a-z]")
_TAKES_A_PART = re.compile(r"embedding|gather|index|scatter|slice|select|split|chunk|narrow|strided|unbind|unfold|take")


def cost_of(op: str) -> Callable[[Call], Work | None] | None:
    """Return the cost of a generated kernel by its name; None where it is none, or may touch a part only."""
    if not _GENERATED.match(op) or _TAKES_A_PART.search(op):
        return None
    return _each_once


def _each_once(call: Call) -> Work | None:
    return Work(call.all_bytes, max(map(call.elements, call.tensors))) if call.tensors else None
