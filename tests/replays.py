"""Steps of built traces, replayed with something changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.pipeline.whatif import Change, Timeline, time_of
from tests.stages import stepped

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.whatif import Replayed
    from tests.kineto import Kineto


def named(linked: Linked, names: Collection[str]) -> NDArray[np.bool_]:
    return linked.kernels["name"].cast(str).is_in(list(names)).to_numpy().copy()


def replayed(trace: Kineto, without: Collection[str] = (), *, launches_free: bool = False) -> Replayed:
    linked, steps = stepped(trace)
    indices = range(len(steps.steps))
    if not without and not launches_free:
        return Timeline(linked, steps).replay(indices)
    return Timeline(linked, steps).replay(indices, Change(named(linked, without), launches_free=launches_free))


def scaled(trace: Kineto, factors: Mapping[str, float]) -> Replayed:
    linked, steps = stepped(trace)
    names = linked.kernels["name"].cast(str).to_list()
    change = Change(np.zeros(len(names), dtype=np.bool_), factor=np.array([factors.get(name, 1.0) for name in names]))
    return Timeline(linked, steps).replay(range(len(steps.steps)), change)


def host_without(trace: Kineto, name: str) -> Replayed:
    linked, steps = stepped(trace)
    calls = linked.trace.launches.filter(linked.trace.launches["name"].cast(str) == name)
    change = Change(np.zeros(linked.kernels.height, dtype=np.bool_), host_gone=time_of(calls))
    return Timeline(linked, steps).replay(range(len(steps.steps)), change)
