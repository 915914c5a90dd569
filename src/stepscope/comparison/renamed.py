"""Kernels that only changed their name: the same class, launches and grids, at the same places in the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.comparison.pairs import Pair
    from stepscope.pipeline.step_work import StepWork

    Ints = NDArray[np.int64]

SAME_PLACES = 0.5
"""More than this share of the launches must stand at the same place: streams interleave differently in each step."""
MOST = 200
"""So many kernels of each trace are looked at, those that take the most time."""
_GRID = ("grid_x", "grid_y", "grid_z")


def renamed(pair: Pair) -> dict[str, str]:
    """Return, for kernels that only BEFORE has, the name of the same work in AFTER.

    A place is the number of launches before it of kernels that both steps launch equally often.
    """
    common = _launched(pair.before).join(_launched(pair.after), on=["name", "launches"], how="semi")["name"]
    left, right = _only_in(pair.before, pair.after, common), _only_in(pair.after, pair.before, common)
    found: dict[str, str] = {}
    for name, (work, places) in left.items():
        for other, (other_work, other_places) in right.items():
            if other_work == work and float((places == other_places).mean()) > SAME_PLACES:
                found[name] = other
                del right[other]
                break
    return found


def _launched(steps: StepWork) -> pl.DataFrame:
    return steps.sequence.group_by("name").agg(pl.len().alias("launches"))


def _only_in(steps: StepWork, other: StepWork, common: pl.Series) -> dict[str, tuple[object, Ints]]:
    """Return what each kernel that the other trace lacks does, class and grids, and the places of its launches."""
    known = steps.kernels.items()
    mine = sorted(((work.work.time_us_per_step, name) for name, work in known if name not in other.kernels))[-MOST:]
    placed = steps.sequence.with_columns(pl.col("name").is_in(common.implode()).cum_sum().alias("place"))
    rows = placed.filter(pl.col("name").is_in([name for _, name in mine])).group_by("name", maintain_order=True)
    return {
        name: ((steps.kernels[name].kernel_class, grids), np.asarray(places))
        for name, *grids, places in rows.agg(*_GRID, "place").iter_rows()
    }
