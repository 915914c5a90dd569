"""Decode steps made of a few kinds of work, launched one by one or as a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.kineto import Kineto

if TYPE_CHECKING:
    from collections.abc import Sequence

STEP = "step[DECODE bs=1]"
OP_US = 7.0
"""Time from one launch to the next: an op encloses its launch, and ops do not overlap."""
BETWEEN_GRAPHS_US = 21.0
"""Time between the last kernel of one graph and the first of the next: 5 to return, 10 on the host, 6 to start."""


class Work(NamedTuple):
    """A kernel, and what its op recorded."""

    kernel: str
    us: float
    op: str | None = None
    dims: Sequence[Sequence[int]] | None = None
    types: Sequence[str] | None = None
    grid: Sequence[int] = (1, 1, 1)


def copied(kernel: str, us: float, shape: Sequence[int], source: str, target: str) -> Work:
    """Return a copy or cast of a tensor, with its shapes; the types are as traces record them."""
    return Work(kernel, us, "aten::copy_", [shape, shape, []], [target, source, "Scalar"])


def eager(
    steps: Sequence[Sequence[Work]],
    *,
    annotation: str = STEP,
    pace: float = OP_US,
    stacks: bool = False,
    prepare: float = 0.0,
) -> Kineto:
    """Launch every kernel on its own, one every `pace` µs, after the host has prepared the step for `prepare` µs."""
    trace = Kineto()
    at = 10.0
    for work in steps:
        begin = at
        at += prepare + 2
        for part in work:
            trace.call(
                part.kernel, at=at, duration=part.us, op=part.op, dims=part.dims, types=part.types, grid=part.grid
            )
            at += pace
        trace.annotation(annotation, begin, at - begin - 1)
        if stacks:
            trace.frame("model.py(10): forward", begin + 1, at - begin - 3)
    return trace


def graphed(steps: Sequence[Sequence[Work]], *, annotation: str = STEP) -> Kineto:
    """Replay every step as a graph and wait for it, as a server does that needs the token; kernels have no ops."""
    trace = Kineto()
    at = 10.0
    for work in steps:
        end = trace.replay([(part.kernel, part.us, part.grid) for part in work], at=at)
        done = max(end + 5, at + 60)
        trace.launch(at + 55, done - (at + 55), name="cudaStreamSynchronize")
        trace.annotation(annotation, at - 2, done - at)
        at = done + 10
    return trace
