"""Tokens and requests of a step, from the shapes of its embedding, where no annotation tells them."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Annotated

import msgspec
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.pipeline.steps.step import Step, Steps
    from stepscope.trace import Trace

EMBEDDING = "aten::embedding"
_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


def with_tokens(trace: Trace, steps: Steps) -> tuple[Step, ...]:
    """Return the steps with the tokens and requests that their shapes tell, where they are not known.

    A step looks its new tokens up in the vocabulary: one call of `aten::embedding`, of ids that are either [tokens] or
    [requests, tokens of each]. The vocabulary is the largest table of a step; where it is read twice, nothing is told.
    """
    told = _looked_up(trace, steps)
    return tuple(_told(step, told.get(index)) for index, step in enumerate(steps.steps))


def _told(step: Step, ids: list[int] | None) -> Step:
    if ids is None or step.tokens is not None:
        return step
    batch = ids[0] if len(ids) == 2 and step.batch_size is None else step.batch_size
    return replace(step, tokens=prod(ids), batch_size=batch)


def _looked_up(trace: Trace, steps: Steps) -> Mapping[int, list[int]]:
    """Return, by step, the shape of the ids looked up in the largest table."""
    ops = trace.ops.filter(pl.col("name").cast(pl.String) == EMBEDDING, pl.col("input_dims").is_not_null())
    if not ops.height:
        return {}
    recorded = ops["input_dims"].cast(pl.String)
    known = {dims: shapes for dims in recorded.unique() if (shapes := _table_and_ids(dims)) is not None}
    calls = pl.DataFrame(
        {
            "step": steps.at(ops["start_ns"].to_numpy()),
            "dims": recorded,
            "rows": recorded.replace_strict({dims: rows for dims, (rows, _) in known.items()}, default=None),
        },
        schema_overrides={"rows": pl.Int64},
    ).drop_nulls()
    largest = calls.filter(pl.col("rows") == pl.col("rows").max().over("step"), pl.col("step") >= 0)
    once = largest.filter(pl.len().over("step") == 1)
    return {step: known[dims][1] for step, dims in once.select("step", "dims").iter_rows()}


def _table_and_ids(dims: str) -> tuple[int, list[int]] | None:
    try:
        table, ids = msgspec.json.decode(dims, type=list[list[_Size]])[:2]
    except (msgspec.DecodeError, ValueError):
        return None
    return (table[0], ids) if len(table) == 2 and len(ids) in {1, 2} else None
