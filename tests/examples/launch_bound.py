"""Traces on which `launch-bound` must speak, and look-alikes on which it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.decode_steps import Work, copied, eager, graphed
from tests.kernel_names import ADD, ATTENTION, GEMM, NORM, TO_BF16

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kineto import Kineto

REST = (Work(GEMM, 2, "aten::mm"), Work(ATTENTION, 3, "flashinfer::run"), Work(ADD, 2, "aten::add"), Work(NORM, 2))
POOL_CAST = copied(TO_BF16, 850, (495_552, 1, 576), "c10::Float8_e4m3fn", "c10::BFloat16")


def small_kernels_launched_one_by_one() -> Kineto:
    return eager([REST * 50] * 3, pace=12)


def eager_trace_recorded_with_stacks() -> Kineto:
    return eager([REST * 50] * 3, pace=40, stacks=True)


def host_that_shows_once_the_pools_cast_is_gone() -> Kineto:
    return eager([[POOL_CAST, *(REST * 10)] * 10] * 3, pace=30)


def steps_of_a_program_without_annotations() -> Kineto:
    return eager([REST * 50] * 3, pace=12, annotation="forward")


def steps_replayed_as_graphs() -> Kineto:
    return graphed([REST * 50] * 3)


def busy_gpu_with_a_deep_queue() -> Kineto:
    return eager([[work._replace(us=20) for work in REST * 50]] * 3, pace=8)


def busy_gpu_that_the_host_just_keeps_up_with() -> Kineto:
    return eager([[work._replace(us=9.5) for work in REST * 50]] * 3, pace=10)


def few_long_gaps_while_the_host_prepares_the_next_batch() -> Kineto:
    return eager([[work._replace(us=20) for work in REST * 10]] * 3, pace=8, prepare=4000)


def graphs_with_a_slow_host_between_them() -> Kineto:
    trace = graphed([])
    for begin in (0, 5000, 10_000):
        trace.annotation("step[DECODE bs=1]", begin, 60)
        trace.replay([(work.kernel, work.us, (1, 1, 1)) for work in REST * 50], at=begin + 2)
    return trace


def a_handful_of_kernels() -> Kineto:
    return eager([REST] * 3, pace=100)


FIRING: list[Callable[[], Kineto]] = [
    small_kernels_launched_one_by_one,
    eager_trace_recorded_with_stacks,
    host_that_shows_once_the_pools_cast_is_gone,
    steps_of_a_program_without_annotations,
]
QUIET: list[Callable[[], Kineto]] = [
    steps_replayed_as_graphs,
    busy_gpu_with_a_deep_queue,
    busy_gpu_that_the_host_just_keeps_up_with,
    few_long_gaps_while_the_host_prepares_the_next_batch,
    graphs_with_a_slow_host_between_them,
    a_handful_of_kernels,
]
