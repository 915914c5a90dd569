"""Traces on which `hidden-sync` must speak, and look-alikes on which it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.host_programs import CHOSEN, DECODE, LONGEST, PREFILL, TO_GPU, TO_HOST, TO_PINNED, Program, steps
from tests.kernel_names import ADD, GEMM
from tests.kineto import Kineto
from tests.published_cases import pool_cast, waits_over_a_busy_queue

if TYPE_CHECKING:
    from collections.abc import Callable


def lists_made_tensors_in_every_layer() -> Kineto:
    def step(host: Program) -> None:
        for _ in range(10):
            host.work(GEMM, 100, times=5)
            host.copy(TO_GPU, "aten::to", size=4096)
            host.think(60)

    return steps(step, annotation=PREFILL)


def longest_length_read_before_every_step() -> Kineto:
    def step(host: Program) -> None:
        host.work(GEMM, 100, times=20)
        host.work(LONGEST, 2, op="aten::max")
        host.copy(TO_PINNED, "aten::item")
        host.think(150)

    return steps(step)


def boolean_indexing_in_every_layer() -> Kineto:
    def step(host: Program) -> None:
        for _ in range(10):
            host.work(GEMM, 100, times=5)
            host.copy(TO_PINNED, "aten::nonzero")
            host.think(60)

    return steps(step)


def reads_in_the_middle_of_the_step_besides_the_tokens() -> Kineto:
    def step(host: Program) -> None:
        for _ in range(3):
            host.work(GEMM, 100, times=5)
            host.copy(TO_HOST, "aten::to")
            host.think(60)
        host.work(CHOSEN, 5, op="aten::argmax")
        host.copy(TO_HOST, "aten::to")

    return steps(step)


def token_read_once_a_step() -> Kineto:
    def step(host: Program) -> None:
        host.work(GEMM, 100, times=20)
        host.work(CHOSEN, 5, op="aten::argmax")
        host.copy(TO_HOST, "aten::to")
        host.think(300)

    return steps(step)


def wait_for_the_step_without_a_copy() -> Kineto:
    def step(host: Program) -> None:
        host.work(GEMM, 100, times=20)
        host.wait()
        host.think(300)

    return steps(step)


def waits_after_which_the_gpu_has_work() -> Kineto:
    trace = Kineto()
    for begin in range(0, 8000, 2000):
        trace.annotation(DECODE, begin, 1990)
        for number in range(10):
            at = begin + number * 200
            trace.call(GEMM, at=at, duration=200)
            trace.op("aten::item", at + 10, 180)
            copy = trace.launch(at + 12, name="cudaMemcpyAsync")
            trace.memcpy(at + 20, 2, size=8, name=TO_PINNED, correlation=copy, stream=9)
            trace.launch(at + 18, 165, name="cudaStreamSynchronize")
    return trace


def waits_of_a_gpu_that_had_nothing_to_do() -> Kineto:
    def step(host: Program) -> None:
        host.work(GEMM, 100, times=20)
        host.wait()
        host.think(1000)
        host.copy(TO_GPU, "aten::to", size=1 << 18)
        host.think(100)

    return steps(step)


def one_off_uploads_at_start() -> Kineto:
    program = Program()
    for number in range(5):
        begin = program.at
        if number == 0:
            for _ in range(20):
                program.work(ADD, 100)
                program.copy(TO_GPU, "aten::to", size=4096)
                program.think(100)
        program.work(GEMM, 100, times=20)
        program.trace.annotation(DECODE, begin, program.at - begin)
        program.at += 2
    return program.trace


def idle_time_below_a_hundredth() -> Kineto:
    def step(host: Program) -> None:
        host.work(GEMM, 1000, times=20)
        host.copy(TO_GPU, "aten::to", size=4096)

    return steps(step)


FIRING: list[Callable[[], Kineto]] = [
    lists_made_tensors_in_every_layer,
    longest_length_read_before_every_step,
    boolean_indexing_in_every_layer,
    reads_in_the_middle_of_the_step_besides_the_tokens,
]
QUIET: list[Callable[[], Kineto]] = [
    token_read_once_a_step,
    wait_for_the_step_without_a_copy,
    waits_after_which_the_gpu_has_work,
    waits_of_a_gpu_that_had_nothing_to_do,
    one_off_uploads_at_start,
    idle_time_below_a_hundredth,
    waits_over_a_busy_queue,
    pool_cast,
]
