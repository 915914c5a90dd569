"""What becomes of the logits: which kernels after the LM head need all of their rows, and which only pass them on."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.detect.lm_head import Multiplied

_READS_LOGITS = re.compile(r"soft_?max|logprob|arg_?max|top_?k|cross_entropy|nll_?loss", re.IGNORECASE)
"""Kernels and ops that use each row of the logits that they are given."""
_PASSES_ON = {"cast", "copy", "elementwise"}


def uses_rows(group: WorkGroup, rows: int) -> bool:
    """Tell whether a group of kernels after the head needs all of so many rows of logits."""
    if not (_READS_LOGITS.search(group.kernel) or _READS_LOGITS.search(group.op or "")):
        return False
    if group.input_shapes and group.input_shapes[0]:
        return prod(group.input_shapes[0][:-1]) >= rows
    return group.grid is not None and prod(group.grid) >= rows


def passes_on(group: WorkGroup, head: Multiplied) -> bool:
    """Tell whether a group copies, casts or scales all logits."""
    shape = group.input_shapes[0] if group.input_shapes else None
    return group.kernel_class in _PASSES_ON and shape is not None and prod(shape) == head.rows * head.vocabulary


def rows_sampled(groups: Sequence[WorkGroup], head: Multiplied) -> int | None:
    """Return how many rows of logits the smallest reading takes; None where no shape tells of fewer than all."""
    shapes = [shape for group in groups for shape in group.input_shapes or () if shape]
    rows = [prod(shape[:-1]) for shape in shapes if shape[-1] == head.vocabulary]
    return min((few for few in rows if 0 < few < head.rows), default=None)
