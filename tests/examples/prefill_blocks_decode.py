"""Traces on which `prefill-blocks-decode` must speak, and look-alikes on which it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.host_programs import TO_HOST, Program
from tests.kernel_names import ATTENTION, GEMM
from tests.published_cases import pool_cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.kineto import Kineto

DECODE_US, PREFILL_US = 2000.0, 40_000.0


def served(schedule: Sequence[tuple[str, int, float]]) -> Kineto:
    """Run steps: annotation, requests, µs of GPU work; each is waited for."""
    program = Program()
    for name, requests, us in schedule:
        begin = program.at
        program.work(GEMM if name == "DECODE" else ATTENTION, us / 10, times=10)
        program.copy(TO_HOST, "aten::to")
        tokens = f" toks={requests * 2048}" if name == "EXTEND" else ""
        program.trace.annotation(f"step[{name} bs={requests}{tokens}]", begin, program.at - begin)
        program.at += 2
    return program.trace


def decodes(requests: int, count: int = 10) -> list[tuple[str, int, float]]:
    return [("DECODE", requests, DECODE_US)] * count


def prompt(us: float = PREFILL_US, requests: int = 1) -> tuple[str, int, float]:
    return ("EXTEND", requests, us)


def prompts_between_decode_steps() -> Kineto:
    return served([*decodes(32), prompt(), *decodes(33), prompt(), *decodes(34), prompt(), *decodes(35)])


def prompts_in_chunks_between_decode_steps() -> Kineto:
    return served([*decodes(32), *[prompt(9000)] * 4, *decodes(33), *[prompt(9000)] * 4, *decodes(34)])


def one_prompt_in_a_recording() -> Kineto:
    return served([*decodes(32), prompt(), *decodes(33)])


def prompts_after_all_requests_have_ended() -> Kineto:
    return served([prompt(), *decodes(1), prompt(), *decodes(1), prompt(), *decodes(1)])


def short_prompts() -> Kineto:
    return served([*decodes(32), prompt(3000), *decodes(33), prompt(3000), *decodes(34)])


def mixed_steps() -> Kineto:
    mixed = ("MIXED", 33, PREFILL_US)
    return served([*decodes(32), mixed, *decodes(33), mixed, *decodes(34)])


def prompts_alone() -> Kineto:
    return served([prompt()] * 6)


FIRING: list[Callable[[], Kineto]] = [prompts_between_decode_steps, prompts_in_chunks_between_decode_steps]
QUIET: list[Callable[[], Kineto]] = [
    one_prompt_in_a_recording,
    prompts_after_all_requests_have_ended,
    short_prompts,
    mixed_steps,
    prompts_alone,
    pool_cast,
]
