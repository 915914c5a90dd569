"""Requests that keep a server in one state, and what their clients see of it."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from stepscope.document import Served, Spread
from stepscope.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from stepscope.capture.server import Server

Phase = Literal["decode", "prefill", "mixed"]
_T = TypeVar("_T")

_TOKEN_IDS = range(16, 512)
"""Ids that every vocabulary has, beyond the special ones at its start."""
_BLOCK = 8
"""Tokens of each request, or prompts, whose median is a step time to compare."""
_SETTLED = 0.1
"""Two blocks in a row differ by less than this."""
_LONGEST_WARM_UP = 40
"""Blocks after which step times are taken as unsettled for good."""
_TICK_S = 0.02
_TOGETHER_S = 2e-4
"""No model decodes a token in less time: tokens that come closer to the one before waited somewhere."""
_MOST_LATE = 0.5
"""Where more than this share of the times between tokens is so short, they are not those of steps."""


@dataclass(frozen=True, slots=True)
class Load:
    """The state to hold."""

    phase: Phase
    batch: int
    context: int
    """Tokens of a prompt."""
    new_tokens: int
    """Most that a decoding request can be asked for."""


class _Arrival(NamedTuple):
    """Tokens of one request that came together."""

    since: float
    """When those before came, or the prompt was sent."""
    at: float
    tokens: int
    is_first: bool
    live: int
    """Tokens of the request then."""


class Traffic:
    """Requests under way. A request that fails is raised from whatever waits here."""

    def __init__(self, server: Server, load: Load) -> None:
        self._server, self._load = server, load
        self._arrivals: list[_Arrival] = []
        self._received = [0] * load.batch
        self._random = random.SystemRandom()  # a prompt that came before would be answered from the prefix cache
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the load inside this context."""
        new_tokens = 1 if self._load.phase == "prefill" else self._load.new_tokens
        self._tasks = [asyncio.create_task(self._requests(new_tokens, stream)) for stream in range(self._load.batch)]
        if self._load.phase == "mixed":
            self._tasks.append(asyncio.create_task(self._requests(1, None)))
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def settle(self, timeout_s: float) -> bool:
        """Wait until two blocks of step times in a row are alike, and say whether they came to be.

        Raises:
            DeviceError: no token comes in time, or the server fails.
        """
        waited = f"requests of {self._load.context:,} tokens, {self._load.batch} at once, brought no token"
        await self.until(lambda: min(self._received) > 0, timeout_s, waited)
        size = _BLOCK * self._load.batch
        for blocks in range(2, _LONGEST_WARM_UP):
            waited = "step times did not settle: too few tokens came"
            await self.until(partial(self._has, blocks * size), timeout_s, waited)
            times = self._steps()
            before, after = median(times[-2 * size : -size]), median(times[-size:])
            if abs(after - before) <= _SETTLED * after:
                return True
        return False

    async def advance(self, steps: int, timeout_s: float) -> tuple[float, float]:
        """Wait until every request has come forward by so many steps; return when that began and ended.

        Raises:
            DeviceError: they do not in time, or the server fails.
        """
        begin, before = time.monotonic(), list(self._received)
        waited = f"{steps} steps did not come"
        await self.until(
            lambda: all(now >= then + steps for now, then in zip(self._received, before, strict=True)),
            timeout_s,
            waited,
        )
        return begin, time.monotonic()

    async def until(self, happened: Callable[[], bool], timeout_s: float, waited: str) -> None:
        """Wait for something while the server serves.

        Raises:
            DeviceError: it does not happen in time, or the server fails.
        """
        end = time.monotonic() + timeout_s
        while not happened():
            self._check()
            if time.monotonic() > end:
                raise DeviceError(f"{waited} within {timeout_s:g} s")
            await asyncio.sleep(_TICK_S)

    async def beside(self, work: Awaitable[_T]) -> _T:
        """Wait for work while the server serves, and raise at once if a request fails."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                self._check()
                await asyncio.wait([task], timeout=_TICK_S)
            return task.result()
        finally:
            task.cancel()

    def served(self, begin: float, end: float) -> Served:
        """Return what clients saw of a stretch of time, given by the monotonic clock."""
        inside = [one for one in self._arrivals if begin <= one.since and one.at <= end]
        tokens = sum(one.tokens for one in self._arrivals if begin < one.at <= end)
        firsts = [one.at - one.since for one in inside if one.is_first]
        between = [_gap(one) for one in inside if not one.is_first]
        in_bursts = sum(gap < _TOGETHER_S for gap in between) > _MOST_LATE * len(between)
        prompts = sum(one.is_first for one in self._arrivals if begin < one.at <= end)
        return Served(
            duration_us=(end - begin) * 1e6,
            requests=prompts,
            first_token_us=_spread(firsts),
            between_tokens_us=None if in_bursts else _spread(between),
            tokens_per_s=tokens / (end - begin),
            prompt_tokens_per_s=prompts * self._load.context / (end - begin),
        )

    def first_tokens(self) -> Spread | None:
        """Return the times to the first tokens so far."""
        return _spread([one.at - one.since for one in self._arrivals if one.is_first])

    def live_tokens(self, begin: float, end: float) -> int | None:
        """Return the median tokens of a request in a stretch of time."""
        is_first = self._load.phase == "prefill"
        live = [one.live for one in self._arrivals if begin < one.at <= end and one.is_first is is_first]
        return round(median(live)) if live else None

    def _steps(self) -> list[float]:
        is_first = self._load.phase == "prefill"
        return [_gap(one) for one in self._arrivals if one.is_first is is_first]

    def _has(self, steps: int) -> bool:
        return len(self._steps()) >= steps

    def _check(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _requests(self, new_tokens: int, stream: int | None) -> None:
        """Send one request after another; the first, for which the server may have to compile, is not counted."""
        await self._request(1, None, [])
        while True:
            await self._request(new_tokens, stream, self._arrivals)

    async def _request(self, new_tokens: int, stream: int | None, arrivals: list[_Arrival]) -> None:
        prompt = self._random.choices(_TOKEN_IDS, k=self._load.context)
        since, seen = time.monotonic(), 0
        async with self._server.generate(prompt, new_tokens) as counts:
            async for count in counts:
                if count <= seen:
                    continue
                now = time.monotonic()
                arrivals.append(_Arrival(since, now, count - seen, seen == 0, len(prompt) + count))
                if stream is not None:
                    self._received[stream] += count - seen
                since, seen = now, count
        if not seen:
            raise DeviceError(f"the server answered a prompt of {len(prompt):,} tokens without a token")


def _gap(arrival: _Arrival) -> float:
    return (arrival.at - arrival.since) / arrival.tokens


def _spread(seconds: Sequence[float]) -> Spread | None:
    if not seconds:
        return None
    return Spread(min=min(seconds) * 1e6, median=median(seconds) * 1e6, max=max(seconds) * 1e6)
