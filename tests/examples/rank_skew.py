"""Ranks on which `rank-skew` must speak, and look-alikes on which it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.decode_ranks import in_lockstep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.kineto import Kineto

CALLS = 20


def even(*us: float) -> list[list[float]]:
    """Return what each rank computes before every collective: the same before each."""
    return [[each] * CALLS for each in us]


def one_of_two_ranks_is_late() -> Sequence[Kineto]:
    return in_lockstep([even(100, 160)] * 5)


def one_of_eight_ranks_is_late() -> Sequence[Kineto]:
    return in_lockstep([even(*[100] * 5, 140, 100, 100)] * 5)


def clocks_of_hosts_apart_and_a_late_rank() -> Sequence[Kineto]:
    return in_lockstep([even(100, 100, 100, 160)] * 5, offsets=(0, 4000, -2500, 900))


def who_is_late_alternates() -> Sequence[Kineto]:
    unequal = [[100.0, 180.0] * (CALLS // 2), [180.0, 100.0] * (CALLS // 2)]
    return in_lockstep([unequal] * 5)


def all_arrive_together() -> Sequence[Kineto]:
    return in_lockstep([even(100, 100, 100, 100)] * 5)


def only_the_clocks_are_apart() -> Sequence[Kineto]:
    return in_lockstep([even(100, 100, 100, 100)] * 5, offsets=(0, 4000, -2500, 900), drifts=(0, 1e-5, -2e-5, 5e-6))


def slow_transfers_for_all() -> Sequence[Kineto]:
    return in_lockstep([even(100, 100)] * 5, transfer=90)


def arrival_that_jitters_by_a_microsecond() -> Sequence[Kineto]:
    jitter = [[100 + 0.2 * ((7 * call + 3 * rank) % 5) for call in range(CALLS)] for rank in range(4)]
    return in_lockstep([jitter] * 5)


def one_rank_of_two_alone() -> Kineto:
    return in_lockstep([even(100, 160)] * 5)[0]


FIRING: list[Callable[[], Sequence[Kineto]]] = [
    one_of_two_ranks_is_late,
    one_of_eight_ranks_is_late,
    clocks_of_hosts_apart_and_a_late_rank,
    who_is_late_alternates,
]
QUIET: list[Callable[[], Kineto | Sequence[Kineto]]] = [
    all_arrive_together,
    only_the_clocks_are_apart,
    slow_transfers_for_all,
    arrival_that_jitters_by_a_microsecond,
    one_rank_of_two_alone,
]
