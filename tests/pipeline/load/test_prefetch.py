"""An iterator that runs ahead: order, errors, and a thread that ends with its consumer."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from stepscope.pipeline.load.prefetch import BLOCKS_AHEAD, prefetched

if TYPE_CHECKING:
    from collections.abc import Iterator


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "stepscope-prefetch"]


@pytest.mark.parametrize("count", [0, 1, BLOCKS_AHEAD, 500])
def test_everything_comes_in_order(count: int) -> None:
    blocks = [b"%d" % number for number in range(count)]
    assert list(prefetched(iter(blocks))) == blocks
    assert threads() == []


def test_empty_blocks_are_blocks() -> None:
    assert list(prefetched(iter([b"", b"a", b""]))) == [b"", b"a", b""]


@pytest.mark.parametrize("after", [0, 1, 30])
def test_an_error_is_raised_at_the_consumer_after_what_precedes_it(after: int) -> None:
    def failing() -> Iterator[bytes]:
        yield from [b"x"] * after
        raise OSError(5, "the disk is gone")

    blocks = prefetched(failing())
    assert [next(blocks) for _ in range(after)] == [b"x"] * after
    with pytest.raises(OSError, match="the disk is gone"):
        next(blocks)
    assert threads() == []


def test_a_consumer_that_stops_early_ends_the_thread() -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x"

    blocks = prefetched(endless())
    assert next(blocks) == b"x"
    assert threads() == ["stepscope-prefetch"]
    blocks.close()  # type: ignore[attr-defined] # a generator
    assert threads() == []
    assert taken <= BLOCKS_AHEAD + 3


def test_no_more_than_a_few_blocks_are_read_ahead() -> None:
    taken = 0

    def counted() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(100):
            taken += 1
            yield b"x"

    blocks = prefetched(counted())
    next(blocks)
    deadline = time.monotonic() + 5
    while taken < BLOCKS_AHEAD and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert BLOCKS_AHEAD <= taken <= BLOCKS_AHEAD + 3  # in the queue, given out, waiting to be put
    assert len(list(blocks)) == 99


def test_nothing_runs_before_the_first_block_is_wanted() -> None:
    prefetched(iter([b"x"]))
    assert threads() == []
