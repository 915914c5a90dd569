"""What a step is, and the steps of a trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.steps.window import Window

    Ints = NDArray[np.int64]


class Phase(StrEnum):
    """What a step computes.

    A step is of the phase `warm-up` where an annotation around its start says so (`warmup`, `warm-up`, `warm_up`), or
    where a graph was captured during it: such steps compile, tune and allocate, which no later step does.
    """

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"
    WARM_UP = "warm-up"
    UNKNOWN = "unknown"


class FoundBy(StrEnum):
    """What told where steps begin."""

    ANNOTATIONS = "annotations"
    GRAPH_LAUNCHES = "graph launches"
    KERNEL_SEQUENCE = "kernel sequence"
    RECORDING = "recording"
    """Nothing did: the whole recording stands for one step."""


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass."""

    name: str
    phase: Phase
    batch_size: int | None
    """Requests; None where nothing tells."""
    host_start_ns: int
    tokens: int | None = None
    """New tokens that the step computes, padding included; None where nothing tells."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a trace, in order, and the GPU work of each."""

    steps: tuple[Step, ...]
    step_of_kernel: Ints
    """Shape [kernels]: index into `steps`; -1 for GPU work outside every step."""
    found_by: FoundBy
    is_capture: bool
    """Whether a graph was captured while recording, so that some of what was launched did not run."""
    hole_ns: int
    """Time at the start of the first step in which the GPU did work that was not recorded."""
    windows: Mapping[Phase, Window] = field(default_factory=dict)
    """The steps of each phase that figures are taken from, and those left out."""

    @property
    def annotated(self) -> bool:
        """Whether annotations mark the steps."""
        return self.found_by is FoundBy.ANNOTATIONS

    def rows(self, indices: Sequence[int]) -> NDArray[np.bool_]:
        """Return which kernels belong to any of the given steps."""
        return np.isin(self.step_of_kernel, np.asarray(indices, dtype=np.int64))

    def kernels_per_step(self) -> Ints:
        """Return the number of kernels of each step."""
        return np.bincount(self.step_of_kernel[self.step_of_kernel >= 0], minlength=len(self.steps))

    def at(self, host_ns: Ints) -> Ints:
        """Return the index of the step during which the host did something; -1 before the first."""
        if self.found_by is FoundBy.RECORDING:
            return np.full(host_ns.shape, len(self.steps) - 1, dtype=np.int64)
        starts = np.array([step.host_start_ns for step in self.steps], dtype=np.int64)
        return np.searchsorted(starts, host_ns, side="right") - 1

    def phases(self) -> dict[Phase, list[int]]:
        """Return the indices of the steps of each phase that did GPU work."""
        phases: dict[Phase, list[int]] = {}
        for index in np.flatnonzero(self.kernels_per_step()).tolist():
            phases.setdefault(self.steps[index].phase, []).append(index)
        return phases

    def typical(self, indices: Sequence[int]) -> Step:
        """Return the step of the median batch size among these; of those that share it, one from the middle."""
        by_batch = sorted(indices, key=lambda index: self.steps[index].batch_size or 0)
        return self.steps[by_batch[len(by_batch) // 2]]

    def steady_phases(self) -> dict[Phase, list[int]]:
        """Return the steps of each phase that figures are taken from; `window.steady` documents which are left out."""
        return {phase: list(window.steady) for phase, window in self.windows.items()}
