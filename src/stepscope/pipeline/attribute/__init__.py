"""What each kernel is: its class, and the groups of kernels that do the same work in one phase."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.attribute.kernel_class import kernel_class
from stepscope.pipeline.attribute.moved import (
    Moved,
    elements_of_launch,
    moved_by_conversion,
    moved_by_grid,
    moved_by_op,
    parse_lists,
    parse_shapes,
    parse_types,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Phase, Steps

    Ints = NDArray[np.int64]
    Dimensions = tuple[int, int, int]

_SAME_WORK = (
    "name",
    "kind",
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "op_name",
    "input_dims",
    "input_types",
)


@dataclass(frozen=True, eq=False)
class WorkGroup:
    """Kernels of one phase with the same name, launch, op and input shapes."""

    phase: Phase
    steps: Sequence[int]
    """The phase's steady steps, which figures per step are taken from."""
    rows: Ints
    """Rows of `Linked.kernels` in all steps of the phase, in order."""
    kernel: str
    kernel_class: str
    grid: Dimensions | None
    op: str | None
    input_shapes: list[list[int]] | None
    input_dtypes: list[str | None] | None
    """As torch writes them; None for an input that is no tensor."""
    input_lists: dict[int, list[list[int]]]
    """Shapes of the tensors in the inputs that are lists of them, by the input's index."""
    recorded_inputs: tuple[str | None, str | None]
    """Shapes and types of the op's inputs as the trace writes them: the same for kernels of the same kind of call."""
    moved: Moved | None
    written: tuple[int, int] | None
    """Bounds of the number of elements that one of PyTorch's kernels writes, as its launch tells; None for others."""
    us: NDArray[np.float64]
    """Duration of each row in µs."""
    step_of_row: Ints

    @cached_property
    def calls_per_step(self) -> float:
        """Median over the steady steps."""
        return self._median_per_step(np.ones_like(self.us))

    @cached_property
    def us_per_call(self) -> float:
        """Median over the calls."""
        return float(np.median(self.us))

    @cached_property
    def time_us_per_step(self) -> float:
        """Summed duration, median over the steady steps."""
        return self._median_per_step(self.us)

    @property
    def is_repeated(self) -> bool:
        """Whether it runs in every steady step, at least once."""
        return len(self.rows) >= len(self.steps) and bool((self._per_step(np.ones_like(self.us)) > 0).all())

    def only(self, kept: NDArray[np.bool_]) -> WorkGroup:
        """Return the part of it that is among some kernels; shape [kernels]."""
        mine = kept[self.rows]
        return replace(self, rows=self.rows[mine], us=self.us[mine], step_of_row=self.step_of_row[mine])

    def _median_per_step(self, weights: NDArray[np.float64]) -> float:
        if 2 * len(self.rows) < len(self.steps):  # it is in fewer than half of the steps
            return 0.0
        return float(np.median(self._per_step(weights)))

    def _per_step(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        totals = np.bincount(self.step_of_row, weights, minlength=max(self.steps) + 1)
        return totals[list(self.steps)].astype(np.float64)


@dataclass(frozen=True, slots=True)
class Attributed:
    """The work of a trace: by class, and in groups."""

    class_of_kernel: NDArray[np.str_]
    """Shape [kernels]."""
    groups: tuple[WorkGroup, ...]
    """All groups of all phases, longest first."""

    def of_phase(self, phase: Phase) -> list[WorkGroup]:
        """Return the groups of a phase, longest first."""
        return [group for group in self.groups if group.phase == phase]


def attribute(linked: Linked, steps: Steps) -> Attributed:
    """Classify every kernel and group those that do the same work."""
    class_of_kernel = classes(linked.kernels.select("name", "kind"))
    duration = linked.kernels["duration_ns"].to_numpy()
    steady = steps.steady_phases()
    phases = [
        _Phase(phase, indices, steady[phase], duration, steps.step_of_kernel, class_of_kernel)
        for phase, indices in steps.phases().items()
    ]
    groups = [group for phase in phases for group in _groups(linked, steps, phase)]
    return Attributed(class_of_kernel, tuple(sorted(groups, key=lambda group: -group.time_us_per_step)))


def classes(kernels: pl.DataFrame) -> NDArray[np.str_]:
    """Return the class of each kernel, by `name` and `kind`; a trace has millions of them and a few hundred names."""
    named = kernels.unique(maintain_order=True)
    pairs = named.select(pl.col("kind", "name").cast(pl.String)).rows()
    classes = np.array([kernel_class(kind, name) for kind, name in pairs], dtype=np.str_)
    numbered = kernels.join(named.with_row_index("number"), on=["name", "kind"], how="left", maintain_order="left")
    return np.take(classes, numbered["number"].to_numpy()) if pairs else classes


@dataclass(frozen=True, slots=True)
class _Phase:
    """The work of one phase, to be grouped."""

    phase: Phase
    indices: Sequence[int]
    steady: Sequence[int]
    duration: Ints
    step_of_kernel: Ints
    class_of_kernel: NDArray[np.str_]


def _groups(linked: Linked, steps: Steps, of: _Phase) -> list[WorkGroup]:
    of_phase = linked.kernels.with_row_index("row").filter(pl.Series(steps.rows(of.indices)))
    chosen = linked.with_op_facts(of_phase)
    table = chosen.group_by(_SAME_WORK, maintain_order=True).agg("row")
    text = pl.col("name", "op_name", "input_dims", "input_types").cast(pl.String)
    return [_group(of, work, rows) for *work, rows in table.with_columns(text).rows()]


def _group(of: _Phase, work: Sequence[object], rows: Sequence[int]) -> WorkGroup:
    kernel, _, *dimensions, op, input_dims, input_types = work
    grid, block = _dimensions(dimensions[:3]), _dimensions(dimensions[3:])
    shapes, types = parse_shapes(_text(input_dims)), parse_types(_text(input_types))
    name = str(kernel)
    moved = None
    if op is not None:
        moved = moved_by_op(str(op), shapes, types) or moved_by_conversion(str(op), shapes, types, name)
    index = np.asarray(rows, dtype=np.int64)
    return WorkGroup(
        phase=of.phase,
        steps=of.steady,
        rows=index,
        kernel=name,
        kernel_class=str(of.class_of_kernel[index[0]]),
        grid=grid,
        op=_text(op),
        input_shapes=shapes,
        input_dtypes=types,
        input_lists=parse_lists(_text(input_dims)),
        recorded_inputs=(_text(input_dims), _text(input_types)),
        moved=moved or moved_by_grid(name, grid, block),
        written=elements_of_launch(name, grid, block),
        us=of.duration[index] / 1e3,
        step_of_row=of.step_of_kernel[index],
    )


def _dimensions(values: Sequence[object]) -> Dimensions | None:
    x, y, z = values
    return (x, y, z) if isinstance(x, int) and isinstance(y, int) and isinstance(z, int) else None


def _text(value: object) -> str | None:
    return None if value is None else str(value)
