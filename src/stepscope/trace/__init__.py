"""The data of a trace: its columns, its tables, and arithmetic on intervals."""

from stepscope.trace.trace import Trace, TraceWarning

__all__ = ["Trace", "TraceWarning"]
