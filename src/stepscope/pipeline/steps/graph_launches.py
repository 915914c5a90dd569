"""Steps by the launches of graphs, where no annotation tells them.

Replays are of the same graph where they run the same kernels. A server replays one graph a step, or several in the same
order (vLLM's pieces: one up to the first attention, one between any two, one after the last), which together are one
step. Where graphs come in no fixed order, as for batches of several sizes, those that hold a pass's layers are steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.pipeline.steps.repeats import holds_repeat
from stepscope.pipeline.steps.sequence import numbered, on_busiest_stream
from stepscope.pipeline.steps.step import Phase, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked

    Ints = NDArray[np.int64]

GRAPH_LAUNCH = r"^(?:cuda|hip|cu)GraphLaunch"
"""Runtime calls that replay a graph."""
MAIN = 0.5
"""So many of the kernels must be replayed: a small graph within a step, such as a sampler's, tells no steps."""
MIN_REPLAYS = 2
MOST_GRAPHS = 256
"""So many graphs, and lengths of their order, are examined: a server has one for each of some 50 batch sizes. Where
there are more, they tell no steps.
"""


def graph_steps(linked: Linked) -> tuple[Step, ...]:
    """Return the steps that begin with a graph's launch; none where graphs do not tell any."""
    launches = linked.trace.launches
    is_graph = launches["name"].cast(pl.String).str.contains(GRAPH_LAUNCH)
    launched = linked.kernels.drop_nulls("launch")
    if not is_graph.any() or not launched.height:
        return ()
    replayed = launched.filter(is_graph[launched["launch"]])
    name = pl.col("name").to_physical()
    replays = replayed.group_by("launch").agg(name.hash().sum().alias("graph")).sort("launch")
    if replays.height < MIN_REPLAYS or replayed.height < MAIN * (launched["launch"] >= replays["launch"][0]).sum():
        return ()
    launch = replays["launch"].to_numpy()
    start = launches["start_ns"].to_numpy()
    end = start + launches["duration_ns"].to_numpy()
    pause = np.concatenate(([0], start[launch[1:]] - end[launch[:-1]]))
    graph = np.unique(replays["graph"].to_numpy(), return_inverse=True)[1]
    period = _period(graph)
    begins = _after_longest_pause(pause, period) if period else _with_layers(graph, launch, replayed)
    return tuple(Step("graph launch", Phase.UNKNOWN, None, at) for at in start[launch[begins]].tolist())


def _period(graph: Ints) -> int | None:
    """Return after how many replays their order repeats, twice at least; None where it does not.

    The rarest graph recurs after a period, so only distances from its first replay need to be tried.
    """
    places = np.flatnonzero(graph == np.argmin(np.bincount(graph)))
    for length in (places[1 : MOST_GRAPHS + 1] - places[0]).tolist():
        if 2 * length <= graph.size and (graph[length:] == graph[:-length]).all():
            return int(length)
    return None


def _after_longest_pause(pause: Ints, period: int) -> Ints:
    places = [np.arange(offset, pause.size, period) for offset in range(period)]
    return max(places, key=lambda place: float(np.median(pause[place[place > 0]])))


def _with_layers(graph: Ints, launch: Ints, replayed: pl.DataFrame) -> Ints:
    """Return the replays of graphs that hold the layers of a whole pass."""
    known, first = np.unique(graph, return_index=True)
    if known.size > MOST_GRAPHS:
        return known[:0]
    whole = [
        number
        for number, replay in zip(known, first, strict=True)
        if _holds_layers(replayed.filter(pl.col("launch") == launch[replay]))
    ]
    return np.flatnonzero(np.isin(graph, whole))


def _holds_layers(kernels: pl.DataFrame) -> bool:
    return holds_repeat(numbered(kernels.filter(on_busiest_stream(kernels))))
