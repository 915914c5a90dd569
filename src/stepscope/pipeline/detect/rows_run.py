"""How many rows a decode step really runs: one for each token of its batch, or more where the batch was padded."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from stepscope.pipeline.cost.ops import as_gemm, call_of

if TYPE_CHECKING:
    from stepscope.pipeline.detect.rule import Case

_AS_LAYERS = 0.25
"""Of the most frequent: what runs less often, such as the LM head, runs not in every layer."""
_ONE_BLOCK_A_ROW = {"norm"}
"""Classes whose kernels give each row a block, in each layer; those by head have a multiple."""
_MAY_CONFIRM = {"activation", "sampling", "gather", "rope", "quantise", "routing", "unclassified"}
"""Classes of which some kernels do too."""


class RowsRun(NamedTuple):
    """The rows of a step, and how they are known."""

    rows: int
    from_shape: bool
    """Of the multiplications; or else off the grids of norms and of another kind of kernel."""


def rows_run(case: Case) -> RowsRun | None:
    """Return the rows of the phase's multiplications, or else the blocks of its norms; None: not told.

    Of several the fewest: where attention is data-parallel, experts see the rows of all its groups together.
    """
    multiplied: Counter[int] = Counter()
    for group in case.groups:
        call = call_of(group)
        gemm = as_gemm(call) if call else None
        if gemm and gemm.batch == 1 and (calls := round(group.calls_per_step)):
            multiplied[gemm.m] += calls
    if multiplied:
        often = max(multiplied.values()) * _AS_LAYERS
        return RowsRun(min(rows for rows, calls in multiplied.items() if calls >= often), from_shape=True)
    norms = {group.grid[0] for group in case.groups if group.grid and group.kernel_class in _ONE_BLOCK_A_ROW}
    others = {group.grid[0] for group in case.groups if group.grid and group.kernel_class in _MAY_CONFIRM}
    rows = min(norms, default=0)
    return RowsRun(rows, from_shape=False) if rows in others else None
