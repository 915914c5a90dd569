"""The modules of the model around a time, and the layers among them.

torch numbers the instances of each class as they are first called: `Layer_5` is the sixth `Layer`. That is a layer's
number only where the class is what the model is stacked of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.link import NONE, innermost, parents

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked
    from stepscope.trace import Trace

    Ints = NDArray[np.int64]

_STACK = ("parent_module", "parent_number", "module")
"""Instances of one class, called under one parent."""
MIN_LAYERS = 4
"""Fewer of a class are as likely the parts of one block."""
_SPAN = r"^nn\.Module: (.+)_(\d{1,9})$"
_SCRIPTED = re.compile(r"(?:^|\.)(?P<name>\w+)\((?P<type>[^()]+)\)::")
"""A step of a `Module Hierarchy`: `A0(A)::forward`, `TOP(C)::forward`, or `SELF(A)::…` for a method of the same."""


@dataclass(frozen=True, slots=True)
class Modules:
    """The calls of modules, in order."""

    calls: pl.DataFrame
    """`start_ns`, `duration_ns`, `thread`, `module` (the class) and `number` (of the instance)."""
    layer: Ints
    """Shape [calls]: the number of the layer that the call is in, or `NONE` where that is not certain."""

    @classmethod
    def of(cls, trace: Trace) -> Modules:
        """Find the calls of modules, and which of them are of layers."""
        parts = pl.col("name").cast(pl.String).str.extract_groups(_SPAN)
        named = trace.frames.with_columns(
            parts.struct[0].cast(pl.Categorical()).alias("module"), parts.struct[1].cast(pl.Int64).alias("number")
        )
        calls = named.drop_nulls("module").select("start_ns", "duration_ns", "thread", "module", "number")
        start = calls["start_ns"].to_numpy()
        parent = parents(calls["thread"].to_numpy(), start, start + calls["duration_ns"].to_numpy())
        return cls(calls, _layers(calls, parent))

    def around(self, thread: Ints, at: Ints) -> Ints:
        """Return for each time on a thread the row of the innermost call around it, or `NONE`."""
        start = self.calls["start_ns"].to_numpy()
        end = start + self.calls["duration_ns"].to_numpy()
        return innermost(self.calls["thread"].to_numpy(), start, end, thread, at)


def layers_of(linked: Linked, rows: Ints) -> list[int]:
    """Return the layers that some kernels ran in, as far as they are certain, from the trace that tells their ops.

    Args:
        linked: the trace.
        rows: rows of `linked.kernels`.
    """
    chosen = linked.kernels.select("op", "donor_op")[rows]
    donated = chosen["donor_op"].drop_nulls().to_numpy()
    own = chosen.filter(chosen["donor_op"].is_null())["op"].drop_nulls().to_numpy()
    found = _layers_of_ops(linked.trace, own)
    if linked.donor is not None:
        found |= _layers_of_ops(linked.donor, donated)
    return sorted(found)


def _layers_of_ops(trace: Trace, ops: Ints) -> set[int]:
    modules = Modules.of(trace)
    if not ops.size or not modules.calls.height:
        return set()
    at = trace.ops.select("thread", "start_ns")[ops]
    around = modules.around(at["thread"].to_numpy(), at["start_ns"].to_numpy())
    return set(modules.layer[around[around != NONE]].tolist()) - {NONE}


def modules_of_hierarchy(hierarchy: str) -> list[str]:
    """Return the modules of a `Module Hierarchy`, outermost first: the class of the top, then `name(Class)`."""
    steps = [(step["name"], step["type"]) for step in _SCRIPTED.finditer(hierarchy)]
    return [kind if name == "TOP" else f"{name}({kind})" for name, kind in steps if name != "SELF"]


def _layers(calls: pl.DataFrame, parent: Ints) -> Ints:
    """Return the layer of each call: of the outermost layer around it."""
    nothing = parent.size
    layer = np.append(np.where(_is_layer(calls, parent), calls["number"].to_numpy(), NONE), NONE)
    above = np.append(np.where(parent == NONE, nothing, parent), nothing)
    while (above != nothing).any():  # twice as far out each time
        outer = layer[above]
        layer = np.where(outer == NONE, layer, outer)
        above = above[above]
    return layer[:-1]


def _is_layer(calls: pl.DataFrame, parent: Ints) -> NDArray[np.bool_]:
    """Tell which calls are of what a model is stacked of.

    Under one parent, in each pass, they are the class's instances 0, 1, 2 …, in order, none left out; no other class
    has so many instances there (a hybrid's layers are of several classes, each with numbers of its own); and what is
    in a layer is in no sibling of the layers too (a first layer of another class would shift all numbers).
    """
    rows = pl.Series(parent).set(pl.Series(parent) == NONE, None)
    table = calls.with_columns(
        pl.Series("parent", rows),
        calls["module"].gather(rows).alias("parent_module"),
        calls["number"].gather(rows).alias("parent_number"),
    )
    before = pl.col("number").shift(1).over("thread", *_STACK, order_by="start_ns")
    follows = (pl.col("number") == before + 1).fill_null(value=False)
    stacks = (
        table.with_columns(((pl.col("number") == 0) | follows).alias("in_order"))
        .group_by(_STACK)
        .agg(pl.col("in_order").all(), pl.col("number").n_unique().alias("instances"), pl.len().alias("calls"))
        .filter(pl.col("instances") >= MIN_LAYERS)
        .filter(pl.len().over("parent_module", "parent_number") == 1)
        .filter("in_order")
    )
    stacks = stacks.join(_shifted(table, rows, stacks), on=_STACK, how="anti", nulls_equal=True)
    found = table.select(_STACK).join(stacks, on=_STACK, how="left", nulls_equal=True, maintain_order="left")
    return found["instances"].is_not_null().to_numpy()


def _shifted(table: pl.DataFrame, parent: pl.Series, stacks: pl.DataFrame) -> pl.DataFrame:
    """Return the stacks of which each layer holds a class once that a sibling of the layers holds too."""
    holder = table.select(pl.col(_STACK).gather(parent).name.prefix("holder_"))
    held = pl.concat([table.select(pl.col("module").alias("held"), "parent"), holder], how="horizontal").drop_nulls(
        "parent"
    )
    held = held.rename({f"holder_{name}": name for name in _STACK})
    once = (
        held.group_by("held", "parent", *_STACK)
        .len()
        .filter(pl.col("len") == 1)
        .group_by("held", *_STACK)
        .agg(pl.len().alias("once"))
        .join(stacks, on=_STACK, nulls_equal=True)
        .filter(pl.col("once") == pl.col("calls"))
    )
    both = once.join(held, on=("parent_module", "parent_number", "held"), nulls_equal=True, suffix="_of_sibling")
    return both.filter(pl.col("module") != pl.col("module_of_sibling")).select(_STACK).unique()
