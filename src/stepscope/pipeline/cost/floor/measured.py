"""Decode steps that a trace measured: how long, and what the time was spent on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.pipeline.steps import Phase
from stepscope.pipeline.steps.middle import Middle

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """The steady decode steps of one batch size in a trace."""

    trace: str
    batch_size: int | None
    """None where the trace does not tell."""
    steps: int
    duration_us: float
    """Median step duration."""
    class_us: Mapping[str, float]
    """Time of each kernel class in the median step."""
    is_complete: bool
    """Whether time without GPU work was idle; otherwise work may be missing from the trace."""

    @property
    def idle_us(self) -> float:
        """Time of the median step in which no kernel ran."""
        return max(self.duration_us - sum(self.class_us.values()), 0.0)


def measure_steps(
    linked: Linked, steps: Steps, class_of_kernel: NDArray[np.str_], *, is_complete: bool
) -> list[MeasuredSteps]:
    """Return the steady decode steps of a trace by batch size, smallest first; none if it holds no decode step.

    Args:
        linked: the trace.
        steps: its steps.
        class_of_kernel: shape [kernels].
        is_complete: whether the trace's totals can be believed.
    """
    indices = steps.steady_phases().get(Phase.DECODE, [])
    by_batch: dict[int | None, list[int]] = {}
    for index in indices:
        by_batch.setdefault(steps.steps[index].batch_size, []).append(index)
    middle = Middle(linked, steps, class_of_kernel)
    return [
        MeasuredSteps(linked.trace.path, batch, len(chosen), *middle.median(chosen), is_complete)
        for batch, chosen in sorted(by_batch.items(), key=lambda item: item[0] or 0)
    ]
