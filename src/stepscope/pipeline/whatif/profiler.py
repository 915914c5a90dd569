"""What the profiler itself cost, so that it can be taken out of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.steps import GRAPH_LAUNCH
from stepscope.pipeline.whatif.changes import Change, time_of

if TYPE_CHECKING:
    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps

GPU_SLOWDOWN = 1.034
"""GPU work lasts this much longer while torch's profiler records it; `docs/accuracy.md` has the steps of graphs that it
was measured on, from 1.014 to 1.057. Kernels of 3 µs and casts of 850 µs are slowed alike."""
MEASURED_ON = "H200"
MOST_OUTSIDE_GRAPHS = 0.1
"""Share of the GPU's time that may come from single launches: what recording costs the host there is not known."""


@dataclass(frozen=True, slots=True)
class Profiler:
    """What recording cost: every kernel's slowdown, and the launches of graphs."""

    cost: Change
    host_is_known: bool
    """Whether nearly all work came from graphs. Recorded ops and launches cost the host 2 to 40 µs each, from one
    recording to the next, which no trace tells."""

    @classmethod
    def of(cls, linked: Linked, steps: Steps) -> Profiler | None:
        """Return what recording cost the steps; None where that was never measured: on another GPU."""
        kernels, calls = linked.kernels, linked.trace.launches
        if MEASURED_ON not in (linked.trace.device_name or "") or not kernels.height:
            return None
        is_graph = calls["name"].cast(pl.String).str.contains(GRAPH_LAUNCH)
        launch = kernels["launch"]
        from_graph = is_graph.gather(launch.fill_null(0)) & launch.is_not_null() if calls.height else launch.is_null()
        inside = pl.Series(steps.step_of_kernel >= 0)  # not the barrier that ranks wait at before the first step
        time = kernels["duration_ns"].filter(inside)
        single = int(time.filter(~from_graph.filter(inside)).sum()) if calls.height else int(time.sum())
        graphs = calls.filter(is_graph)
        cost = Change(
            np.zeros(kernels.height, dtype=np.bool_),
            factor=np.full(kernels.height, 1 / GPU_SLOWDOWN),
            host_gone=time_of(graphs),
        )
        return cls(cost, host_is_known=single <= MOST_OUTSIDE_GRAPHS * int(time.sum()))

    def taken_out(self, change: Change | None = None) -> Change | None:
        """Return the change, or none, with the cost of recording taken out; None where no estimate is honest."""
        if change is None:
            return self.cost if self.host_is_known else None
        return change | self.cost if self.host_is_known or change.launches_free else None
