"""Traces on which `slow-collective` must speak, and look-alikes on which it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.decode_ranks import in_lockstep
from tests.kineto import H200
from tests.published_collectives import token_of_slow_all_reduces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.kineto import Kineto

CALLS = 160
"""Two in each of glm-5's 78 layers, and some."""


def ring_for_small_messages_on_four_ranks() -> Sequence[Kineto]:
    return token_of_slow_all_reduces(ranks=4)


def one_rank_alone() -> Sequence[Kineto]:
    return token_of_slow_all_reduces()


def on_a_gpu_that_was_not_measured() -> Sequence[Kineto]:
    return token_of_slow_all_reduces(device={"id": 0, "name": "NVIDIA L40S"})


def graphs_whose_messages_the_model_tells() -> Sequence[Kineto]:
    return in_lockstep([[[100] * CALLS] * 2] * 5, transfer=40)


def one_shot_on_four_ranks() -> Sequence[Kineto]:
    return token_of_slow_all_reduces(5.0, ranks=4)


def less_than_twice_the_best_known() -> Sequence[Kineto]:
    return token_of_slow_all_reduces(9.9)


def large_messages() -> Sequence[Kineto]:
    return token_of_slow_all_reduces(100.0, message=16 << 20, device=H200)


def large_messages_on_a_gpu_that_was_not_measured() -> Sequence[Kineto]:
    return token_of_slow_all_reduces(400.0, message=1 << 20, device={"id": 0, "name": "NVIDIA L40S"})


def ranks_that_wait_for_a_late_one() -> Sequence[Kineto]:
    return in_lockstep([[[100] * CALLS, [160] * CALLS]] * 5)


FIRING: list[Callable[[], Sequence[Kineto]]] = [
    ring_for_small_messages_on_four_ranks,
    one_rank_alone,
    on_a_gpu_that_was_not_measured,
    graphs_whose_messages_the_model_tells,
]
QUIET: list[Callable[[], Sequence[Kineto]]] = [
    one_shot_on_four_ranks,
    less_than_twice_the_best_known,
    large_messages,
    large_messages_on_a_gpu_that_was_not_measured,
    ranks_that_wait_for_a_late_one,
]
