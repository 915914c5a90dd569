"""Which kernels set a buffer to a constant, and which of these something adds to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from stepscope.kernel_name import LOOKED_AT
from stepscope.pipeline.detect.neighbours import next_on_stream
from stepscope.pipeline.link import NONE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.link import Linked

FILLS = {"aten::fill_", "aten::zero_", "aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::full"}
"""Ops whose memset is a fill; any other op clears what is its own."""
_ROCM_MEMSET = "fillBuffer"
_ADDS_UP = re.compile(
    r"scatter|index_add|indexFunc\w*<.*Add|atomic|histogram|bincount|moe_align|split_?k|stream_?k", re.IGNORECASE
)
"""Kernels that add to what is there, or count in it; cuBLAS's own are in no need of it (`nvjet…splitK`)."""
_OVERWRITES = "nvjet"


def is_fill(group: WorkGroup) -> bool:
    """Tell whether kernels fill a buffer of the model's."""
    return group.op in FILLS if is_memset(group) else group.kernel_class == "fill"


def is_memset(group: WorkGroup) -> bool:
    """Tell whether memory is set by the driver's own means, which libraries use too."""
    return group.kernel_class == "memset" or _ROCM_MEMSET in group.kernel


def before_sums(linked: Linked) -> NDArray[np.bool_]:
    """Tell which kernels one follows that adds up, on the same stream; shape [kernels]."""
    names = linked.kernels["name"]
    adding = [name for name in names.unique().cast(pl.String) if _adds_up(name[:LOOKED_AT])]
    adds, follows = names.cast(pl.String).is_in(adding).to_numpy(), next_on_stream(linked)
    before: NDArray[np.bool_] = (follows != NONE) & adds[follows]
    return before


def _adds_up(kernel: str) -> bool:
    return _ADDS_UP.search(kernel) is not None and not kernel.startswith(_OVERWRITES)
