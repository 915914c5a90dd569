"""Where many ops come from at once: the place in your code, the module and the layer of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.attribute.code_owner import is_yours
from stepscope.pipeline.attribute.modules import Modules, modules_of_hierarchy
from stepscope.pipeline.attribute.stacks import FUNCTION, frames_of_text, place_of
from stepscope.pipeline.link import NONE, innermost

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked
    from stepscope.trace import Trace

    Ints = NDArray[np.int64]


def origins(linked: Linked, parent: Ints, op: Ints, kernel: Ints, internal: Collection[str]) -> dict[str, pl.Series]:
    """Return where pairs of an op and a kernel come from; a kernel without an op from where its launch does.

    Args:
        linked: the trace.
        parent: shape [ops], the op around each, or `NONE`.
        op: shape [pairs], rows of `trace.ops`, or `NONE`.
        kernel: shape [pairs], rows of `linked.kernels`, or `NONE`.
        internal: packages whose functions are not your code.

    Returns:
        Series of the length of the pairs: `source` (`file:line function`), `module` (its class) and `layer`.
    """
    trace = linked.trace
    launch = linked.kernels["launch"].fill_null(NONE).to_numpy()
    from_launch = np.where((op == NONE) & (kernel != NONE), np.append(launch, NONE)[kernel], NONE)
    thread, at = np.full(op.shape, NONE, dtype=np.int64), np.zeros(op.shape, dtype=np.int64)
    for table, row in ((trace.ops, op), (trace.launches, from_launch)):
        known = row != NONE
        thread[known] = table["thread"].to_numpy()[row[known]]
        at[known] = table["start_ns"].to_numpy()[row[known]]
    modules = Modules.of(trace)
    within = modules.around(thread, at)
    source, module = _sources(trace, thread, at, internal), _picked(modules.calls["module"], within)
    if not trace.frames.height:  # as in 2021, when they stood on the ops
        source = _told(trace, "call_stack", parent, op, lambda text: _place(text, internal))
        module = _told(trace, "module_hierarchy", parent, op, _innermost_module)
    layer = pl.Series(np.append(modules.layer, NONE)[within], dtype=pl.Int64)
    return {"source": source, "module": module, "layer": layer.set(layer == NONE, None)}


def _sources(trace: Trace, thread: Ints, at: Ints, internal: Collection[str]) -> pl.Series:
    """Return `file:line function` of the innermost of your functions around each time, or of any where none is."""
    names = trace.frames["name"].cast(pl.String)
    parts = {name: FUNCTION.match(name) for name in names.unique()}
    functions = {name: part for name, part in parts.items() if part}
    yours = {name for name, part in functions.items() if is_yours(part["file"], internal)}
    found = np.full(at.shape, NONE, dtype=np.int64)
    for chosen in (yours, functions.keys() - yours):
        rows = names.is_in(list(chosen)).arg_true().to_numpy()
        missing = found == NONE
        frames = trace.frames[rows]
        start = frames["start_ns"].to_numpy()
        end = start + frames["duration_ns"].to_numpy()
        row = innermost(frames["thread"].to_numpy(), start, end, thread[missing], at[missing])
        found[missing] = np.append(rows, NONE)[row]
    text = {name: _said(part["file"], part["line"], part["function"]) for name, part in functions.items()}
    return _picked(names, found).replace_strict(text, default=None, return_dtype=pl.String)


def _told(trace: Trace, column: str, parent: Ints, op: Ints, say: Callable[[str], str | None]) -> pl.Series:
    """Return what a column of the ops says for each, or for the innermost around it that has something to say."""
    texts = trace.ops[column]
    nothing = parent.size
    above = np.append(np.where(parent == NONE, nothing, parent), nothing)
    row = np.append(np.where(texts.is_null().to_numpy(), NONE, np.arange(nothing)), NONE)
    while (above != nothing).any():  # twice as far out each time
        row = np.where(row == NONE, row[above], row)
        above = above[above]
    said = {text: say(text) for text in texts.unique().drop_nulls().cast(pl.String)}
    return _picked(texts, row[op]).replace_strict(said, default=None, return_dtype=pl.String)


def _innermost_module(hierarchy: str) -> str | None:
    modules = modules_of_hierarchy(hierarchy)
    return modules[-1] if modules else None


def _place(call_stack: str, internal: Collection[str]) -> str | None:
    frames = frames_of_text(call_stack)
    if not frames:
        return None
    frame = frames[place_of(frames, internal)]
    return _said(frame.file, frame.line, frame.function)


def _said(file: str, line: int | str, function: str) -> str:
    return f"{file}:{line} {function}"


def _picked(values: pl.Series, rows: Ints) -> pl.Series:
    """Return the values of some rows as text, null for `NONE`."""
    series = pl.Series(rows, dtype=pl.Int64)
    return values.cast(pl.String).gather(series.set(series == NONE, None))
