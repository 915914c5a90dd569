"""The events of a Kineto trace as typed structs.

The garbage collector does not track them (`gc=False`): they hold no cycles, and a trace has millions of them.
"""

from __future__ import annotations

import operator
from decimal import Decimal
from functools import reduce
from typing import Annotated, Any

import msgspec

NOT_RECORDED = msgspec.Raw(b"")
"""What `Input Dims` and `Input type` are where a span has none."""


Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A number that a column can hold; an event with a larger one is damaged."""


class Args(msgspec.Struct, gc=False):
    """The arguments of a span that stepscope uses; all others are skipped without being built."""

    device: Int64 | None = None
    stream: Int64 | str | None = None
    correlation: Int64 | str | None = None
    grid: tuple[Int64, Int64, Int64] | str | None = None
    block: tuple[Int64, Int64, Int64] | str | None = None
    bytes: Int64 | str | None = None
    size: Int64 | str | None = None
    """What ROCm 6.2 called the bytes of a copy, on the runtime's row only."""
    kernel: Any = None
    """The kernel's name on ROCm's launches; of no certain type, so that an odd one costs no event."""
    call_stack: Any = msgspec.field(name="Call stack", default=None)
    """The Python functions around an op of 2021; of no certain type, as `kernel`."""
    module_hierarchy: Any = msgspec.field(name="Module Hierarchy", default=None)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NOT_RECORDED)
    input_types: msgspec.Raw = msgspec.field(name="Input type", default=NOT_RECORDED)
    collective: Any = msgspec.field(name="Collective name", default=None)
    """Of a collective, as the next five: torch tells them of those that were launched one by one."""
    group_name: Any = msgspec.field(name="Process Group Name", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    message_elements: Any = msgspec.field(name="In msg nelems", default=None)
    message_dtype: Any = msgspec.field(name="dtype", default=None)


class Span(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An event with a duration; `ts` and `dur` are µs in every dialect."""

    ts: float = 0.0
    dur: float = 0.0
    name: str = ""
    cat: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    args: Args | None = None


class ExactSpan(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A span with absolute float times: the digits are kept, since a float64 would lose 0.25 µs."""

    ts: Decimal = Decimal(0)
    dur: float = 0.0
    name: str = ""
    cat: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    args: Args | None = None


_OTHER_PHASES = "BEiIMCsftbneSTpFRcvVPNODa(),"
"""Instants, flows, metadata, counters and whatever else the trace event format knows: counted, not used."""

_others: list[Any] = [msgspec.defstruct("Other", [], gc=False, tag_field="ph", tag=tag) for tag in _OTHER_PHASES]


def _decoder(span: Any) -> msgspec.json.Decoder[list[Any]]:  # noqa: ANN401 -- the union is built at run time
    return msgspec.json.Decoder(list[reduce(operator.or_, _others, span)])  # type: ignore[misc]


FLOAT_DECODER = _decoder(Span)
"""Decodes a list of events with times as float64: exact to the ns below 2**43 µs, fast."""

EXACT_DECODER = _decoder(ExactSpan)
"""Decodes a list of events with times as decimals: exact at any size, slower."""

FLOAT_LIMIT_US = float(1 << 43)
"""From here on float64 times in µs are 2 ns and more apart."""

CATEGORIES = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "gpu_memset": "memset",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "cpu_op": "op",
    "user_annotation": "annotation",
    "python_function": "frame",
    # the schema of 2021
    "Kernel": "kernel",
    "Memcpy": "memcpy",
    "Memset": "memset",
    "Runtime": "launch",
    "Operator": "op",
}
"""Kineto's categories that become rows of a table, by what they become."""
