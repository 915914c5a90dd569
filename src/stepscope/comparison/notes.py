"""What makes two traces hard to compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.step_work import MOST_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.comparison.pairs import Pair
    from stepscope.document import Diagnosis

SAME_TOKENS = 0.1
"""Steps whose tokens differ by this share do other work."""


def notes(before: Diagnosis, after: Diagnosis, pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield what a reader must know before believing the differences, a sentence each."""
    (old,), (new,) = before.traces, after.traces
    if old.device and new.device and old.device != new.device:
        yield f"the traces are of different GPUs, {old.device} and {new.device}: so is the difference"
    if old.rank is not None and new.rank is not None and old.rank != new.rank:
        yield f"the traces are of different ranks, {old.rank} and {new.rank}"
    for name, trace in (("BEFORE", old), ("AFTER", new)):
        if not trace.complete:
            yield f"{name} is incomplete, so that its idle time and totals cannot be believed"
    if len(pairs) >= MOST_KINDS:
        yield f"only the {MOST_KINDS} most frequent phases and batch sizes of each trace are compared"
    for pair in pairs:
        yield from _of_pair(pair)


def _of_pair(pair: Pair) -> Iterator[str]:
    phase, sizes = pair.before.phase, (pair.before.batch_size, pair.after.batch_size)
    if sizes[0] != sizes[1]:
        told, silent = ("BEFORE", "AFTER") if sizes[1] is None else ("AFTER", "BEFORE")
        size = sizes[0] if sizes[1] is None else sizes[1]
        yield f"{phase}: {silent} does not tell its batch size; it is taken for {told}'s {size}"
    tokens = (pair.before.tokens, pair.after.tokens)
    if tokens[0] and tokens[1] and abs(tokens[1] - tokens[0]) > SAME_TOKENS * tokens[0]:
        yield f"{phase}: the steps compute different numbers of new tokens, {tokens[0]:,} and {tokens[1]:,}"
    shared = pair.before.kernels.keys() & pair.after.kernels.keys()
    if not shared:
        yield f"{phase}: no kernel is in both traces; they may be of different models or engines"
