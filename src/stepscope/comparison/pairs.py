"""Steps of the same phase and batch size in both traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope.document import Unpaired

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stepscope.pipeline.step_work import StepWork

_FIRST = "decode"
_LEFT_OUT = "warm-up"
"""Steps that compile, tune and allocate, which no later step does."""


class Pair(NamedTuple):
    """Steps of the same kind."""

    trace: int
    """Which of the pairs of files."""
    before: StepWork
    after: StepWork


def pair_steps(trace: int, before: Sequence[StepWork], after: Sequence[StepWork]) -> tuple[list[Pair], list[Unpaired]]:
    """Return the pairs, decode first and then by how much time of BEFORE they are, and the steps without a partner.

    Where only one trace tells the batch size, and each has one kind of step left in the phase, these are a pair.
    """
    left = {_key(steps): steps for steps in before if steps.phase != _LEFT_OUT}
    right = {_key(steps): steps for steps in after if steps.phase != _LEFT_OUT}
    pairs = [Pair(trace, left.pop(key), right.pop(key)) for key in list(left) if key in right]
    for phase in {phase for phase, _ in left}:
        (lefts, rights) = ([key for key in side if key[0] == phase] for side in (left, right))
        if len(lefts) == len(rights) == 1 and None in {lefts[0][1], rights[0][1]}:
            pairs.append(Pair(trace, left.pop(lefts[0]), right.pop(rights[0])))
    return sorted(pairs, key=_order), [
        *_unpaired(trace, "before", left.values()),
        *_unpaired(trace, "after", right.values()),
    ]


def _order(pair: Pair) -> tuple[bool, float]:
    """Return what pairs are sorted by."""
    return pair.before.phase != _FIRST, -_total_us(pair.before)


def _key(steps: StepWork) -> tuple[str, int | None]:
    return steps.phase, steps.batch_size


def _total_us(steps: StepWork) -> float:
    return float(steps.duration_us.mean()) * steps.count


def _unpaired(trace: int, side: str, steps: Iterable[StepWork]) -> Iterator[Unpaired]:
    for each in steps:
        yield Unpaired(trace=trace, side=side, phase=each.phase, batch_size=each.batch_size, count=each.count)
