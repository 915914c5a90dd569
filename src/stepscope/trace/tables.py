"""A trace's SQL tables: the columns of each, for a person who writes a query. Nothing heavy is imported here.

Times are µs since the first span of the trace; names and recorded arguments are text. A column named as a table is,
such as `kernels.op`, joins it: it holds that table's own row number, `ops.op`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "events": ("kind", "start_us", "duration_us", "name", "thread", "device", "stream", "correlation"),
    "kernels": (
        *("kernel", "start_us", "duration_us", "name", "kind", "kernel_class", "device", "stream", "correlation"),
        *("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "bytes", "op", "step"),
    ),
    "ops": ("op", "start_us", "duration_us", "name", "thread", "input_dims", "input_types", "parent", "step"),
    "frames": ("frame", "start_us", "duration_us", "name", "thread"),
    "steps": (
        *("step", "name", "phase", "batch_size", "tokens", "steady"),
        *("start_us", "gpu_start_us", "gpu_end_us", "kernels"),
    ),
}
"""The tables and their columns.

- `events`: every kind of event; `kind` is kernel, memcpy, memset, launch, op, annotation or frame.
- `kernels`: GPU work, copies and fills included. `op`: the innermost op around its launch; `step`: the step that
  launched it; both null where there is none. `bytes`: of a memcpy or memset.
- `ops`: `parent` is the op around an op, null for the outermost; `thread` numbers the threads of the trace.
- `frames`: Python functions, modules and built-ins on the stacks.
- `steps`: `tokens` are the new ones that a step computes, `start_us` is where the host began, `steady` whether figures
  per step are taken from it, `kernels` how many it launched, from `gpu_start_us` to `gpu_end_us`.

Null: not recorded, or a thing that such a row does not have. A recording in which nothing tells steps is one step.
"""
