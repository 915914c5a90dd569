"""How many tokens of the KV pool are live: what the running requests read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.model import Deployment
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.steps import Step

_VLLM_DETAILED = re.compile(r"_generation_\d+\(sq\d+sk(?P<tokens>\d{1,12})(?!\d)")
_GATHER_OPS = {"aten::index", "aten::index_select"}
ONE_BLOCK_A_ROW = "vectorized_gather_kernel"
"""The kernel that gathers rows, each with one block, so that its grid tells how many."""


class LiveTokens(NamedTuple):
    """Tokens of all requests of a step together, and how that is known."""

    tokens: int
    source: str


def live_tokens(
    deployment: Deployment, step: Step, groups: Sequence[WorkGroup], slots: int, reads_per_step: float | None = None
) -> LiveTokens | None:
    """Return the live tokens of a step: as told, else from its annotation, else from a gather that reads the pool.

    Args:
        deployment: what the command line told.
        step: a step of the phase.
        groups: the work of the phase.
        slots: rows of the pool that a gather must read from.
        reads_per_step: how often the pools of all layers are read, which tells a gather whose shapes are not recorded.
    """
    if deployment.context is not None and step.batch_size is not None:
        return LiveTokens(deployment.context * step.batch_size, f"--context × batch {step.batch_size}")
    annotated = _VLLM_DETAILED.search(step.name)
    if annotated:
        return LiveTokens(int(annotated["tokens"]), "the step's annotation")
    for group in groups:
        if ONE_BLOCK_A_ROW not in group.kernel or not group.grid:
            continue
        if group.input_shapes and group.input_shapes[0][:1] == [slots] and group.op in _GATHER_OPS:
            return LiveTokens(group.grid[0], "the rows that a gather reads from the pool")
        if group.input_shapes is None and group.calls_per_step == reads_per_step and group.grid[0] < slots:
            return LiveTokens(group.grid[0], "the rows that a gather copies as often as the pool is read")
    return None
