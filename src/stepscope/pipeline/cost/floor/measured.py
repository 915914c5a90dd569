"""Decode steps that a trace measured: how long, and what the time was spent on.

Every moment of a step is given to the kernel that was the first to run then, or to none, so that classes and idle time
add up to the step exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.pipeline.steps import Phase
from stepscope.pipeline.steps.spans import spans

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps

    Ints = NDArray[np.int64]


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
    start = linked.kernels["start_ns"].to_numpy()
    timed = _Timed(start, start + linked.kernels["duration_ns"].to_numpy(), steps, class_of_kernel)
    return [
        MeasuredSteps(linked.trace.path, batch, len(chosen), *timed.median(chosen), is_complete)
        for batch, chosen in sorted(by_batch.items(), key=lambda item: item[0] or 0)
    ]


class _Timed:
    def __init__(self, start: Ints, end: Ints, steps: Steps, class_of_kernel: NDArray[np.str_]) -> None:
        self._start, self._end, self._class = start, end, class_of_kernel
        self._step = steps.step_of_kernel
        inside = self._step >= 0
        self._spans = spans(self._step[inside], start[inside], end[inside], len(steps.steps))

    def median(self, chosen: list[int]) -> tuple[float, dict[str, float]]:
        """Return the median duration in µs and its time by class: of the middle step, or the mean of the middle two."""
        followed = [index for index in chosen if self._spans.followed[index]]
        # the only step lasts as long as its GPU work
        begin, until = self._spans.begin, self._spans.next_begin if followed else self._spans.end
        by_length = sorted(followed or chosen, key=lambda index: until[index] - begin[index])
        half = (len(by_length) - 1) // 2
        middle = by_length[half : len(by_length) - half]
        total: dict[str, float] = {}
        for index in middle:
            for kernel_class, ns in self._class_ns(index, int(until[index])).items():
                total[kernel_class] = total.get(kernel_class, 0.0) + ns / 1e3 / len(middle)
        duration = sum(int(until[index] - begin[index]) for index in middle) / 1e3 / len(middle)
        return duration, total

    def _class_ns(self, index: int, until: int) -> dict[str, int]:
        rows = np.flatnonzero(self._step == index)
        rows = rows[np.argsort(self._start[rows], kind="stable")]
        end = np.minimum(self._end[rows], until)
        before = np.concatenate((self._spans.begin[index : index + 1], np.maximum.accumulate(end)[:-1]))
        alone = np.maximum(end - np.maximum(self._start[rows], before), 0)
        names, number = np.unique(self._class[rows], return_inverse=True)
        return dict(zip(names.tolist(), np.bincount(number, alone).astype(np.int64).tolist(), strict=True))
