"""Whether a recording is of training, where some of what inference need not do is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from stepscope.pipeline.link import Linked

_BACKWARD_KERNEL = r"(?i)backward|_bwd|dgrad|wgrad"
_BACKWARD_OP = r"^autograd::engine|Backward\d*$|_backward"


def is_training(linked: Linked) -> bool:
    """Tell whether the trace holds work of a backward pass."""
    kernels, ops = (table["name"].unique().cast(pl.String) for table in (linked.kernels, linked.trace.ops))
    return bool(kernels.str.contains(_BACKWARD_KERNEL).any() or ops.str.contains(_BACKWARD_OP).any())
