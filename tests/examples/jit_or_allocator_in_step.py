"""Traces on which `jit-or-allocator-in-step` must speak, and look-alikes on which it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.host_programs import DECODE, TO_HOST, Program, steps
from tests.kernel_names import ADD, GEMM
from tests.published_cases import pool_cast, waits_for_copies

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kineto import Kineto

STEPS, LONG_STEP = 20, 11


def step(host: Program) -> None:
    """Launch 2 ms of work and read the token."""
    host.work(GEMM, 100, times=20)
    host.copy(TO_HOST, "aten::to")


def one_long_step(within: Callable[[Program], None], *, number: int = LONG_STEP, sizes: bool = False) -> Kineto:
    """Run steps, and in one of them, after half of its work, something else; `sizes` gives that one another batch."""
    program = Program()
    for index in range(STEPS):
        begin = program.at
        if index == number:
            program.work(GEMM, 100, times=10)
            program.wait()
            within(program)
            program.work(GEMM, 100, times=10)
            program.copy(TO_HOST, "aten::to")
        else:
            step(program)
        name = "step[DECODE bs=4]" if sizes and index == number else DECODE
        program.trace.annotation(name, begin, program.at - begin)
        program.at += 2
    return program.trace


def cache_emptied_in_every_step() -> Kineto:
    def one(host: Program) -> None:
        step(host)
        host.call("cudaFree", 400)
        for _ in range(3):
            host.call("cudaMalloc", 100)

    return steps(one)


def code_loaded_in_one_step() -> Kineto:
    return one_long_step(lambda host: host.call("cuModuleLoadData", 30_000))


def memory_taken_in_one_step() -> Kineto:
    return one_long_step(lambda host: host.call("cudaMalloc", 9000))


def collector_that_runs_in_one_step() -> Kineto:
    return one_long_step(lambda host: host.think(150_000))


def memory_taken_in_the_first_step() -> Kineto:
    return one_long_step(lambda host: host.call("cudaMalloc", 9000), number=0)


def code_loaded_for_a_new_size() -> Kineto:
    return one_long_step(lambda host: host.call("cuModuleLoadData", 30_000), sizes=True)


def warm_up_that_loads() -> Kineto:
    def one(host: Program) -> None:
        step(host)
        host.call("cuModuleLoadData", 3000)

    return steps(one, annotation="warmup step[DECODE bs=1]")


def memory_taken_while_the_gpu_has_work() -> Kineto:
    def one(host: Program) -> None:
        host.work(GEMM, 1000, times=20)
        host.call("cudaMalloc", 300)

    return steps(one)


def queued_allocations() -> Kineto:
    def one(host: Program) -> None:
        step(host)
        host.call("cudaMallocAsync", 40)
        host.call("cudaFreeAsync", 40)

    return steps(one)


def long_step_whose_gpu_work_is_long() -> Kineto:
    return one_long_step(lambda host: host.work(ADD, 20_000))


def pause_after_the_last_request() -> Kineto:
    program = Program()
    for index in range(STEPS):
        begin = program.at
        step(program)
        program.trace.annotation(f"step[DECODE bs={1 if index <= LONG_STEP else 2}]", begin, program.at - begin)
        program.at += 150_000 if index == LONG_STEP else 2
    return program.trace


FIRING: list[Callable[[], Kineto]] = [
    cache_emptied_in_every_step,
    code_loaded_in_one_step,
    memory_taken_in_one_step,
    collector_that_runs_in_one_step,
]
QUIET: list[Callable[[], Kineto]] = [
    memory_taken_in_the_first_step,
    code_loaded_for_a_new_size,
    warm_up_that_loads,
    memory_taken_while_the_gpu_has_work,
    queued_allocations,
    long_step_whose_gpu_work_is_long,
    pause_after_the_last_request,
    waits_for_copies,
    pool_cast,
]
