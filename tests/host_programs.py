"""Programs whose host works, copies and waits beside the GPU, as a server does between and within its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kineto import Kineto

if TYPE_CHECKING:
    from collections.abc import Callable

DECODE, PREFILL = "step[DECODE bs=1]", "step[EXTEND bs=1 toks=1024]"
TO_GPU, TO_HOST, TO_PINNED = (
    f"Memcpy {way}" for way in ("HtoD (Pageable -> Device)", "DtoH (Device -> Pageable)", "DtoH (Device -> Pinned)")
)
LONGEST = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<long, at::native::func_wrapper_t<long,"
    " at::native::MaxNanFunctor<long> >, unsigned int, long, 4, 4> >"
)
CHOSEN = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float> > >"
RETURN_US = 8.0
"""From the end of the GPU's work to the return of the call that waits for it."""


class Program:
    """A host that launches work, copies and waits; `at` is its clock."""

    def __init__(self) -> None:
        self.trace = Kineto()
        self.at = 0.0
        self.done = 0.0

    def work(self, name: str, us: float, *, op: str | None = None, times: int = 1) -> None:
        """Launch kernels, one every 10 µs."""
        for _ in range(times):
            self.done = self.trace.call(name, at=self.at + 1, duration=us, op=op)
            self.at += 10

    def copy(self, way: str, op: str, *, size: int = 8, wait: bool = True) -> None:
        """Copy within an op and wait for the copy."""
        begin = self.at
        correlation = self.trace.launch(self.at + 2, 5, name="cudaMemcpyAsync")
        start = max(self.done, self.at + 9)
        self.trace.memcpy(start, 2, size=size, name=way, correlation=correlation)
        self.done = start + 2
        self.at += 8
        if wait:
            self.wait()
        self.trace.op(op, begin, self.at - begin)

    def wait(self) -> None:
        """Wait for all work."""
        returns = max(self.done + RETURN_US, self.at + 3)
        self.trace.launch(self.at, returns - self.at, name="cudaStreamSynchronize")
        self.at = returns + 1

    def call(self, name: str, us: float) -> None:
        """Make a call of the runtime that starts nothing."""
        self.trace.launch(self.at, us, name=name)
        self.at += us + 1

    def think(self, us: float) -> None:
        """Do what is not recorded."""
        self.at += us


def steps(one: Callable[[Program], None], *, annotation: str = DECODE, count: int = 4) -> Kineto:
    """Run a step several times."""
    program = Program()
    for _ in range(count):
        begin = program.at
        one(program)
        program.trace.annotation(annotation, begin, program.at - begin)
        program.at += 2
    return program.trace
