"""The steps replayed with causes removed: host and device of a trace on one timeline."""

from __future__ import annotations

from stepscope.pipeline.whatif.changes import Change, time_of
from stepscope.pipeline.whatif.fuse import chains, fused, host_time, only_launched
from stepscope.pipeline.whatif.host import Wait
from stepscope.pipeline.whatif.profiler import GPU_SLOWDOWN, Profiler
from stepscope.pipeline.whatif.replayed import Replayed
from stepscope.pipeline.whatif.timeline import GRAPH_GAP_NS, MOST_ERROR, Timeline

__all__ = [
    "GPU_SLOWDOWN",
    "GRAPH_GAP_NS",
    "MOST_ERROR",
    "Change",
    "Profiler",
    "Replayed",
    "Timeline",
    "Wait",
    "chains",
    "fused",
    "host_time",
    "only_launched",
    "time_of",
]
