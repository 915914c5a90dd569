"""Kernels that only changed their name: the same class, launches and grids, at the same places in the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.comparison.pairs import Pair
    from stepscope.pipeline.step_work import StepWork

    Ints = NDArray[np.int64]

SAME_PLACES = 0.5
"""More than this share of the launches must stand at the same place: streams interleave differently in each step."""
_GRID = ("grid_x", "grid_y", "grid_z")


def renamed(pair: Pair) -> dict[str, str]:
    """Return, for kernels that only BEFORE has, the name of the same work in AFTER.

    A place is the number of launches before it of kernels that both steps launch equally often.
    """
    common = _launched(pair.before).join(_launched(pair.after), on=["name", "launches"], how="semi")["name"]
    left = {name: grids for name, grids in _grids(pair.before, common).items() if name not in pair.after.kernels}
    right = {name: grids for name, grids in _grids(pair.after, common).items() if name not in pair.before.kernels}
    found: dict[str, str] = {}
    for name, (grids, places) in left.items():
        kernel_class = pair.before.kernels[name].kernel_class
        for other, (other_grids, other_places) in right.items():
            same_work = other_grids == grids and pair.after.kernels[other].kernel_class == kernel_class
            if same_work and float((places == other_places).mean()) > SAME_PLACES:
                found[name] = other
                del right[other]
                break
    return found


def _launched(steps: StepWork) -> pl.DataFrame:
    return steps.sequence.group_by("name").agg(pl.len().alias("launches"))


def _grids(steps: StepWork, common: pl.Series) -> dict[str, tuple[list[tuple[int | None, ...]], Ints]]:
    """Return the grids and the places of each kernel's launches, in order."""
    placed = steps.sequence.with_columns(pl.col("name").is_in(common.implode()).cum_sum().alias("place"))
    rows = placed.filter(~pl.col("name").is_in(common.implode())).group_by("name", maintain_order=True)
    return dict(_columns(rows.agg(*_GRID, "place")))


def _columns(rows: pl.DataFrame) -> Iterator[tuple[str, tuple[list[tuple[int | None, ...]], Ints]]]:
    for name, *grid, place in rows.iter_rows():
        yield name, (list(zip(*grid, strict=True)), np.asarray(place))
