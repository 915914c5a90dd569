"""The collectives in the steps of one rank: the small table that is kept of its trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.load.source import STDIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.hardware import Gpu
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.ranks.messages import Message
    from stepscope.pipeline.steps import Phase, Steps

_NO_COLLECTIVE = -2


@dataclass(frozen=True, slots=True)
class RankCalls:
    """What is kept of a rank once its own diagnosis is made."""

    trace: int
    """Index of its trace among those that are diagnosed."""
    path: str
    rank: int
    """−1: not told. Such a trace stands alone."""
    world_size: int | None
    """Ranks of the run, where the trace tells."""
    gpu: Gpu | None
    calls: pl.DataFrame
    """In order of start: `key` (group and kernel), `step`, `ordinal` (among those of that key in its step), `end_ns`,
    `duration_ns`, `row` (in the trace's kernels), `in_graph`, `message` (index into `messages`; −1: not known)."""
    messages: Sequence[Message]
    """What the calls carry."""
    steady: Mapping[Phase, Sequence[int]]
    """The steps of each phase that figures are taken from."""
    step_us: Mapping[Phase, float]
    """Median duration of these."""

    @classmethod
    def of(  # noqa: PLR0913 -- what stages made of a trace, by name
        cls,
        trace: int,
        linked: Linked,
        steps: Steps,
        *,
        groups: Sequence[tuple[WorkGroup, Message | None]],
        step_us: Mapping[Phase, float],
        gpu: Gpu | None,
    ) -> RankCalls:
        """Keep the collectives of a trace's steps.

        Args:
            trace: the trace's index.
            linked: the trace.
            steps: its steps.
            groups: the collectives of all phases, and what each group of them carries.
            step_us: median step duration of each phase.
            gpu: the GPU that it ran on.
        """
        messages = tuple(dict.fromkeys(carried for _, carried in groups if carried))
        message = np.full(linked.kernels.height, _NO_COLLECTIVE)
        for group, carried in groups:
            message[group.rows] = messages.index(carried) if carried else -1
        launch = linked.kernels["launch"].fill_null(-1).to_numpy()
        rows = np.flatnonzero(message != _NO_COLLECTIVE)
        kernels = linked.kernels[rows].with_columns(
            pl.Series("row", rows),
            pl.Series("step", steps.step_of_kernel[rows], dtype=pl.Int64),
            pl.Series("in_graph", _shared(launch)[rows]),
            pl.Series("message", message[rows]),
            pl.col("name").cast(pl.String),
        )
        key = pl.concat_str(pl.col("group").cast(pl.String).fill_null(""), "name", separator=" ")
        calls = kernels.select(
            key.alias("key"),
            "step",
            pl.int_range(pl.len()).over(key, "step").alias("ordinal"),
            (pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns"),
            "duration_ns",
            "row",
            "in_graph",
            "message",
        )
        info = linked.trace.header.get("distributedInfo")
        world = info.get("world_size") if isinstance(info, dict) else None
        return cls(
            trace,
            linked.trace.path,
            -1 if linked.trace.rank is None else linked.trace.rank,
            world if type(world) is int and world > 0 else None,
            gpu,
            calls,
            messages,
            steps.steady_phases(),
            step_us,
        )

    def share(self, phase: Phase) -> float:
        """Return the share of a phase's step that its collectives take: median over the steady steps, summed up."""
        steps, step_us = self.steady.get(phase, ()), self.step_us.get(phase, 0.0)
        if not steps or not step_us or not self.calls.height:
            return 0.0
        of, ns = self.calls["step"].to_numpy(), self.calls["duration_ns"].to_numpy()
        taken = np.bincount(of, weights=ns, minlength=max(*steps, int(of.max())) + 1)[list(steps)]
        return float(np.median(taken)) / 1e3 / step_us

    @property
    def can_be_read_again(self) -> bool:
        """Whether its trace came from a file, not from stdin."""
        return self.path != STDIN

    @property
    def in_graphs(self) -> bool:
        """Whether most of its collectives were replayed by graphs."""
        return 2 * int(self.calls["in_graph"].sum()) > self.calls.height


def _shared(launch: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which kernels share their launch with others, as those of a graph do."""
    counts = np.bincount(launch + 1)
    shared: NDArray[np.bool_] = (launch >= 0) & (counts[launch + 1] > 1)
    return shared
