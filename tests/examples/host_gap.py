"""Traces on which `host-gap` must speak, and look-alikes on which it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.host_programs import CHOSEN, LONGEST, PREFILL, TO_GPU, TO_HOST, TO_PINNED, Program, steps
from tests.kernel_names import GEMM
from tests.published_cases import pool_cast, waits_over_a_busy_queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kineto import Kineto

GEMMS, STEP_US = 20, 2000.0
POLL = "<built-in method poll of select.epoll object at 0x7f0000000000>"


def step(host: Program) -> None:
    """Launch 2 ms of work and read the token."""
    host.work(GEMM, STEP_US / GEMMS, times=GEMMS)
    host.work(CHOSEN, 5, op="aten::argmax")
    host.copy(TO_HOST, "aten::to")


def tables_built_in_python_between_steps() -> Kineto:
    def one(host: Program) -> None:
        step(host)
        host.think(1000)
        host.copy(TO_GPU, "aten::to", size=1 << 18)

    return steps(one)


def python_alone_between_steps() -> Kineto:
    def one(host: Program) -> None:
        step(host)
        host.think(400)

    return steps(one)


def functions_recorded_between_steps() -> Kineto:
    def one(host: Program) -> None:
        step(host)
        host.trace.frame("scheduler.py(40): prepare", host.at, 990)
        host.think(1000)

    return steps(one)


def ops_between_prefills() -> Kineto:
    def one(host: Program) -> None:
        step(host)
        host.trace.op("aten::cat", host.at, 800)
        host.think(1000)

    return steps(one, annotation=PREFILL)


def next_step_launched_in_time() -> Kineto:
    def one(host: Program) -> None:
        host.work(GEMM, STEP_US / GEMMS, times=GEMMS)
        host.think(1000)

    return steps(one)


def little_work_between_steps() -> Kineto:
    def one(host: Program) -> None:
        step(host)
        host.think(60)

    return steps(one)


def no_request_between_prefills() -> Kineto:
    def one(host: Program) -> None:
        step(host)
        host.think(5000)

    return steps(one, annotation=PREFILL)


def no_request_between_steps_of_a_program() -> Kineto:
    def one(host: Program) -> None:
        step(host)
        host.think(5000)

    return steps(one, annotation="ProfilerStep#1")


def server_that_polls_for_requests() -> Kineto:
    def one(host: Program) -> None:
        step(host)
        host.trace.frame("server.py(40): serve", host.at - 5, 5000)
        host.trace.frame(POLL, host.at, 4800)
        host.think(5000)

    return steps(one)


def batches_that_end_one_after_another() -> Kineto:
    program = Program()
    for requests in range(6, 0, -1):
        begin = program.at
        step(program)
        program.trace.annotation(f"step[DECODE bs={requests}]", begin, program.at - begin)
        program.think(3000)
    return program.trace


def graphs_whose_launch_takes_long() -> Kineto:
    program = Program()
    for _ in range(4):
        begin = program.at
        program.done = program.trace.replay([(GEMM, 100, (1, 1, 1))] * 20, at=program.at + 2900, host=10)
        program.trace.events[-21]["ts"], program.trace.events[-21]["dur"] = program.at + 2, 2900
        program.at += 2910
        program.wait()
        program.trace.annotation("step[DECODE bs=1]", begin, program.at - begin)
    return program.trace


def wait_without_work_after_it() -> Kineto:
    def one(host: Program) -> None:
        host.work(GEMM, STEP_US / GEMMS, times=GEMMS)
        host.work(LONGEST, 2, op="aten::max")
        host.copy(TO_PINNED, "aten::item")

    return steps(one)


def allocations_between_steps() -> Kineto:
    def one(host: Program) -> None:
        step(host)
        host.call("cudaFree", 900)

    return steps(one)


FIRING: list[Callable[[], Kineto]] = [
    tables_built_in_python_between_steps,
    python_alone_between_steps,
    functions_recorded_between_steps,
    ops_between_prefills,
]
QUIET: list[Callable[[], Kineto]] = [
    next_step_launched_in_time,
    little_work_between_steps,
    no_request_between_prefills,
    no_request_between_steps_of_a_program,
    server_that_polls_for_requests,
    batches_that_end_one_after_another,
    graphs_whose_launch_takes_long,
    wait_without_work_after_it,
    allocations_between_steps,
    waits_over_a_busy_queue,
    pool_cast,
]
