"""An iterator that runs ahead in a thread; decompression releases the interpreter's lock and overlaps with decoding."""

from __future__ import annotations

from queue import Full, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCKS_AHEAD = 8
_POLL_SECONDS = 0.1


def prefetched(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield what an iterator yields, and raise what it raises; its thread ends when the consumer does."""
    runner = _Runner(blocks)
    runner.start()
    try:
        while (item := runner.queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        runner.stopped.set()
        runner.join(_POLL_SECONDS * 10)  # a read of stdin may never return


class _Runner(Thread):
    """Puts blocks into a queue until the consumer has had enough; None after the last, or the error that ended them."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__(name="stepscope-prefetch", daemon=True)
        self.queue: Queue[bytes | BaseException | None] = Queue(BLOCKS_AHEAD)
        self.stopped = Event()
        self._blocks = blocks

    def run(self) -> None:
        """Run the iterator."""
        try:
            for block in self._blocks:
                if not self._put(block):
                    return
        except BaseException as error:  # noqa: BLE001 -- raised again where the consumer is
            self._put(error)
        else:
            self._put(None)

    def _put(self, item: bytes | BaseException | None) -> bool:
        while not self.stopped.is_set():
            try:
                self.queue.put(item, timeout=_POLL_SECONDS)
            except Full:
                continue
            return True
        return False
