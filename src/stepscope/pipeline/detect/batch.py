"""Which sizes of a phase follow its batch, so that a tensor with them is new data in every step."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.pipeline.detect.rule import Case

MATMUL_OPS = {"aten::mm", "aten::addmm", "aten::linear", "aten::matmul", "aten::_scaled_mm"}
"""Ops whose first input is an activation, so that its leading sizes follow the batch."""


def batch_sizes(case: Case) -> set[int]:
    """Return the sizes that follow the batch: the rows of what is multiplied by weights, and the batch itself."""
    sizes = {case.step.batch_size} if case.step.batch_size else set()
    for group in case.groups:
        if group.op in MATMUL_OPS and group.input_shapes and len(group.input_shapes[0]) > 1:
            leading = group.input_shapes[0][:-1]
            sizes |= {prod(leading), leading[0]}
    return sizes - {0}  # a tensor may be empty: an expert without tokens
