"""Every column of a trace, declared once: its type, its unit, what null means, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    dtype: pl.DataType | type[pl.DataType]
    doc: str
    unit: str | None = None
    null: str | None = None
    """What null means; None: the column is never null."""


_START = Column(pl.Int64, "start, relative to the first span of the trace", unit="ns")
_DURATION = Column(pl.Int64, "duration, never negative", unit="ns")
_NAME = Column(pl.Categorical(), "name as recorded")
_THREAD = Column(pl.Int32, "index into Trace.threads")
_CORRELATION = Column(pl.Int64, "joins a launch and the GPU work that it started", null="not recorded")
_NO_LAUNCH = "copies, fills and ROCm graph replays have none"
_NO_COLLECTIVE = "no collective of torch's, or replayed by a graph"

KERNELS: Mapping[str, Column] = {
    "start_ns": _START,
    "duration_ns": _DURATION,
    "name": _NAME,
    "kind": Column(pl.Categorical(), "kernel, memcpy or memset"),
    "device": Column(pl.Int32, "device index", null="not recorded"),
    "stream": Column(pl.Int32, "stream on the device", null="not recorded"),
    "correlation": _CORRELATION,
    "grid_x": Column(pl.Int32, "blocks in x", null=_NO_LAUNCH),
    "grid_y": Column(pl.Int32, "blocks in y", null=_NO_LAUNCH),
    "grid_z": Column(pl.Int32, "blocks in z", null=_NO_LAUNCH),
    "block_x": Column(pl.Int16, "threads a block in x", null=_NO_LAUNCH),
    "block_y": Column(pl.Int16, "threads a block in y", null=_NO_LAUNCH),
    "block_z": Column(pl.Int16, "threads a block in z", null=_NO_LAUNCH),
    "bytes": Column(pl.Int64, "bytes moved by a memcpy or memset", unit="B", null="a kernel, or not recorded"),
    "collective": Column(pl.Categorical(), "what torch calls a collective: allreduce, all_to_all", null=_NO_COLLECTIVE),
    "group": Column(pl.Categorical(), "name and ranks of a collective's process group", null=_NO_COLLECTIVE),
    "group_size": Column(pl.Int32, "ranks of a collective's process group", null=_NO_COLLECTIVE),
    "message_bytes": Column(pl.Int64, "bytes that a rank gives to a collective", unit="B", null=_NO_COLLECTIVE),
}
"""All GPU work, sorted by start: kernels, memory copies and memory sets."""

LAUNCHES: Mapping[str, Column] = {
    "start_ns": _START,
    "duration_ns": _DURATION,
    "name": _NAME,
    "thread": _THREAD,
    "correlation": _CORRELATION,
    "bytes": Column(
        pl.Int64, "bytes that a copy or set moves", unit="B", null="another call, or told on the GPU's row"
    ),
    "kernel": Column(pl.Categorical(), "name of the kernel that ROCm was asked to run", null="CUDA, or another call"),
}
"""Runtime and driver calls on the host, sorted by start: launches, copies, synchronisations and the rest."""

OPS: Mapping[str, Column] = {
    "start_ns": _START,
    "duration_ns": _DURATION,
    "name": _NAME,
    "thread": _THREAD,
    "input_dims": Column(
        pl.Categorical(), "shapes of the inputs, as the JSON recorded", null="shapes were not recorded"
    ),
    "input_types": Column(
        pl.Categorical(), "types of the inputs, as the JSON recorded", null="shapes were not recorded"
    ),
    "call_stack": Column(
        pl.Categorical(),
        "Python functions around, innermost first, between `;`, each with the line that it was at",
        null="none, or told by `frames`, as since 2022",
    ),
    "module_hierarchy": Column(
        pl.Categorical(),
        "TorchScript modules around, outermost first, such as `TOP(C)::forward.A0(A)::forward.`",
        null="none",
    ),
}
"""Framework operations on the host, sorted by start."""

ANNOTATIONS: Mapping[str, Column] = {
    "start_ns": _START,
    "duration_ns": _DURATION,
    "name": _NAME,
    "thread": _THREAD,
}
"""Named ranges on the host (`record_function`, NVTX-like), sorted by start."""

FRAMES: Mapping[str, Column] = {
    "start_ns": _START,
    "duration_ns": _DURATION,
    "name": _NAME,
    "thread": _THREAD,
}
"""Python functions and modules on the host's stacks, sorted by start."""


TABLES: Mapping[str, Mapping[str, Column]] = {
    "kernels": KERNELS,
    "launches": LAUNCHES,
    "ops": OPS,
    "annotations": ANNOTATIONS,
    "frames": FRAMES,
}
"""The tables of a trace, by the name of their field."""


def polars_schema(columns: Mapping[str, Column]) -> pl.Schema:
    """Return the Polars schema of a table."""
    return pl.Schema({name: column.dtype for name, column in columns.items()})
