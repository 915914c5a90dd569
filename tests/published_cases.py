"""Published cases as traces, built from their causes: durations, launches and waits, not from what came after.

What each step took before is laid out event by event; what it took once the cause was gone stands in the tests only.
"""

from __future__ import annotations

from tests.decode_steps import BETWEEN_GRAPHS_US, STEP, Work, graphed
from tests.kernel_names import ADD, ATTENTION, GEMM, TO_BF16
from tests.kineto import Kineto

LAYERS, CAST_US, CASTS = 61, 225.79, "*direct_copy_kernel*"
"""sglang#35291: the casts of a decode step, and a glob of their name."""


def pool_cast() -> Kineto:
    """sglang#35291: five replays of 31.52 ms a step, of which 61 casts of 225.79 µs; other kernels fill the rest."""
    other_us = (31_520.0 - BETWEEN_GRAPHS_US - LAYERS * CAST_US) / (2 * LAYERS)
    cast = Work(TO_BF16, CAST_US, grid=(147_456, 1, 1))  # 131,072 × 576 elements, 512 a block
    return graphed([[Work(GEMM, other_us), cast, Work(ATTENTION, other_us)] * LAYERS] * 5)


def pool_of_16_bits() -> Kineto:
    """sglang#35291's control: a pool in BF16, no copies, 17.20 ms."""
    other_us = (17_200.0 - BETWEEN_GRAPHS_US) / (2 * LAYERS)
    return graphed([[Work(GEMM, other_us), Work(ATTENTION, other_us)] * LAYERS] * 5)


def launched_one_by_one() -> Kineto:
    """sglang-omni#2182: 836 kernels of 5.77 ms in all, launched evenly over 19.96 ms a step."""
    return _launched_evenly(836, 5_770.0, 19_960.0)


def launched_while_the_gpu_is_busy() -> Kineto:
    """sglang-omni#2182, Whisper: 399 kernels of 29.07 ms in all, launched evenly over 30.17 ms a step."""
    return _launched_evenly(399, 29_070.0, 30_170.0)


def replayed_in_one_launch() -> Kineto:
    """sglang-omni#2182 with a CUDA graph: 906 kernels, 5.94 of 6.43 ms."""
    trace = Kineto()
    for begin in range(10, 10 + 4 * 6430, 6430):
        trace.annotation(STEP, begin - 1, 6400)
        end = trace.replay([(ADD, 5940 / 906, (1, 1, 1))] * 906, at=begin)
        trace.launch(begin + 60, end + 5 - begin - 60, name="cudaStreamSynchronize")
    return trace


def _launched_evenly(kernels: int, busy_us: float, wall_us: float) -> Kineto:
    trace = Kineto()
    for step in range(4):
        begin = step * wall_us
        trace.annotation(STEP, begin, wall_us - 10)
        for number in range(kernels):
            trace.call(ADD, at=begin + number * wall_us / kernels, duration=busy_us / kernels)
    return trace


def waits_for_copies() -> Kineto:
    """sglang#32575: prefill batches of 1,678 ms, each with 12 copies from pageable memory that the host waits for.

    After each wait the host prepares what comes next, and the GPU has nothing to do: 33.1 ms a batch in all.
    """
    batch_us, syncs, idle_us = 1_678_000.0, 12, 33_100.0
    kernels = 10
    kernel_us = (batch_us - idle_us) / (syncs * kernels)
    trace = Kineto()
    at = done = 0.0
    for _ in range(3):
        begin = at
        for _ in range(syncs):
            for _ in range(kernels):
                done = trace.call("gemm", at=at, duration=kernel_us)
                at += 20
            copy = trace.launch(at, 5, name="cudaMemcpyAsync")
            trace.memcpy(done, 2, size=4096, name="Memcpy HtoD (Pageable -> Device)", correlation=copy)
            done += 2
            at += 6
            trace.launch(at, done + 8 - at, name="cudaStreamSynchronize")
            # 8 µs to return and 6 µs to launch are idle too
            at = done + 8 + idle_us / syncs - 8 - 6
        trace.annotation("step[EXTEND bs=1 toks=8192]", begin, at - begin - 1)
    return trace


def waits_over_a_busy_queue() -> Kineto:
    """atlas#246: of a step's 250 ms the host waits 109 for the one before, while the GPU has the next one queued."""
    step_us, wait_us, kernels = 250_000.0, 109_000.0, 100
    trace = Kineto()
    before = None
    at = 0.0
    for _ in range(6):
        begin, end = at, 0.0
        launch_us = 5 if before is None else (step_us - wait_us) / kernels
        for _ in range(kernels):
            end = trace.call("kernel", at=at, duration=step_us / kernels)
            at += launch_us
        if before is not None:
            trace.launch(at, before + 5 - at, name="cudaEventSynchronize")
            at = before + 6
        before = end
        trace.annotation("step[DECODE bs=1]", begin, at - begin - 1)
    return trace
