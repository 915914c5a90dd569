"""The middle step taken apart: every moment is given to the kernel that was the first to run then, or to none.

So the parts and idle time add up to the step exactly, where unions by class would count what overlaps twice. It is the
middle step, because medians of parts do not add up to a median.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.pipeline.steps.spans import spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps.step import Steps

    Ints = NDArray[np.int64]


class Middle:
    """The steps of a trace, ready to have the middle one of any of them taken apart."""

    def __init__(self, linked: Linked, steps: Steps, class_of_kernel: NDArray[np.str_]) -> None:
        self._start = linked.kernels["start_ns"].to_numpy()
        self._end = self._start + linked.kernels["duration_ns"].to_numpy()
        self._class = class_of_kernel
        self._step = steps.step_of_kernel
        inside = self._step >= 0
        self.spans = spans(self._step[inside], self._start[inside], self._end[inside], len(steps.steps))

    def timed(self, chosen: Sequence[int]) -> tuple[list[int], Ints]:
        """Return which of these steps have a duration, and until when each step lasts.

        The last step of a run is not followed by another; where no step is, each lasts as long as its GPU work.
        """
        followed = [index for index in chosen if self.spans.followed[index]]
        return (followed, self.spans.next_begin) if followed else (list(chosen), self.spans.end)

    def median(self, chosen: Sequence[int]) -> tuple[float, dict[str, float]]:
        """Return the median duration in µs and its time by class: of the middle step, or the mean of the middle two."""
        timed, until = self.timed(chosen)
        by_length = sorted(timed, key=lambda index: until[index] - self.spans.begin[index])
        half = (len(by_length) - 1) // 2
        middle = by_length[half : len(by_length) - half]
        total: dict[str, float] = {}
        for index in middle:
            for kernel_class, ns in self._class_ns(index, int(until[index])).items():
                total[kernel_class] = total.get(kernel_class, 0.0) + ns / 1e3 / len(middle)
        duration = sum(int(until[index] - self.spans.begin[index]) for index in middle) / 1e3 / len(middle)
        return duration, total

    def _class_ns(self, index: int, until: int) -> dict[str, int]:
        rows = np.flatnonzero(self._step == index)
        rows = rows[np.argsort(self._start[rows], kind="stable")]
        end = np.minimum(self._end[rows], until)
        before = np.concatenate((self.spans.begin[index : index + 1], np.maximum.accumulate(end)[:-1]))
        alone = np.maximum(end - np.maximum(self._start[rows], before), 0)
        names, number = np.unique(self._class[rows], return_inverse=True)
        return dict(zip(names.tolist(), np.bincount(number, alone).astype(np.int64).tolist(), strict=True))
