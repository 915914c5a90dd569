"""Published waits that cost nothing, as traces: read as if they were lost, and retracted or measured to be neutral.

What is called fill is invented.
"""

from __future__ import annotations

from tests.host_programs import CHOSEN, DECODE, TO_HOST, Program
from tests.kernel_names import GEMM
from tests.kineto import Kineto

GRAPH_KERNELS = 100
WORKER = 2
"""The thread that computes experts beside the one that launches."""


def _replayed(program: Program, us: float) -> None:
    graph = [(GEMM, us / GRAPH_KERNELS, (132, 1, 1))] * GRAPH_KERNELS
    program.done = program.trace.replay(graph, at=program.at + 1)
    program.at += 55


def three_reads_after_each_replay() -> Kineto:
    """sglang-omni#572: three reads of a step's results were made one, with no effect on latency.

    The first waits for the graph, as one must; the others find it done and cost two calls each. The step of 5 ms and
    60 µs of work on what was read are fill.
    """
    program = Program()
    for _ in range(5):
        begin = program.at
        _replayed(program, 5_000)
        for _ in range(3):
            program.copy(TO_HOST, "aten::to")
        program.think(60)
        program.trace.annotation(DECODE, begin, program.at - begin)
    return program.trace


def token_read_into_pageable_memory() -> Kineto:
    """imp#1654: one sequence's token is copied into a variable on the stack, and the host waits for it.

    What the copy waits for is the step that computes the token. The step of 12 ms is fill.
    """
    program = Program()
    for _ in range(5):
        begin = program.at
        _replayed(program, 12_000)
        program.work(CHOSEN, 5)
        program.copy(TO_HOST, "aten::to", size=4)
        program.think(20)
        program.trace.annotation(DECODE, begin, program.at - begin)
    return program.trace


COLIBRI_LAYERS, COLIBRI_TOKEN_US, COLIBRI_GPU_US = 78, 172_000.0, 45_000.0
COLIBRI_LAUNCHES, COLIBRI_COPIES, COLIBRI_SYNCS = 19, 10, 3
COLIBRI_LAUNCH_US, COLIBRI_COPY_US, COLIBRI_SYNC_US = 9.1, 33.6, 56.7
"""Calls of a layer and µs of each: about 1,490, 800 and 240 a token, 54 ms in all."""


def calls_beside_experts_on_the_cpu() -> Kineto:
    """colibri#431: calls of 54 ms a token, added up as if nothing ran beside them; without them it took as long.

    The CPU computes most experts of every layer meanwhile, and the token takes as long as that does. That its work
    was recorded, as ops of another thread, and that it is spread evenly over the layers, is fill.
    """
    trace, at = Kineto(), 10.0
    layer_us = COLIBRI_TOKEN_US / COLIBRI_LAYERS
    kernel_us = COLIBRI_GPU_US / COLIBRI_LAYERS / COLIBRI_LAUNCHES
    for _ in range(3):
        begin = at
        for _ in range(COLIBRI_LAYERS):
            trace.op("aten::linear", at, layer_us - 20, tid=WORKER)
            now = at + 1
            for number in range(COLIBRI_LAUNCHES):
                done = trace.call("quant_matmul", at=now, duration=kernel_us)
                now += COLIBRI_LAUNCH_US
                if number < COLIBRI_COPIES:
                    copy = trace.launch(now, COLIBRI_COPY_US - 1, name="cudaMemcpyAsync")
                    start = max(done, now + COLIBRI_COPY_US)
                    trace.memcpy(start, 1, size=4096, correlation=copy)
                    done = start + 1
                    now += COLIBRI_COPY_US
            for _ in range(COLIBRI_SYNCS):
                us = max(COLIBRI_SYNC_US, done + 2 - now)
                trace.launch(now, us, name="cudaStreamSynchronize")
                now += us + 1
            at += layer_us
        trace.annotation(DECODE, begin, at - begin - 1)
    return trace
