"""The set that is recorded: each slowdown with the requests on which it shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stepscope.lab import slowdowns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.lab.config import LabConfig
    from stepscope.lab.slowdowns import Mode


@dataclass(frozen=True, slots=True)
class Case:
    """One slowdown, or none, with one set of requests, in one way or two."""

    config: LabConfig
    modes: tuple[Mode, ...]

    @property
    def name(self) -> str:
        """The case's folder."""
        requests, longest = len(self.config.contexts), max(self.config.contexts)
        added = f"+{self.config.new_tokens}" if self.config.new_tokens > 1 else ""
        return f"{self.config.slowdown or 'healthy'}-{requests}x{longest}{added}-pool{self.config.pool_slots}"


_ALONE = (1024,)
_LONG = (32_768,)
_MANY = (4096,) * 16
_SHORT_MANY = (1024,) * 16
_FEW = (1024,) * 3
_SMALLER_POOLS = (131_072, 65_536)
_CHUNK = 1024

_REQUESTS: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "full-pool-cast": (_ALONE, _LONG, _MANY),
    "layout-copies": (_SHORT_MANY,),
    "hidden-sync": (_ALONE, _MANY),
    "padding": (_FEW,),
    "slow-sampling": (_SHORT_MANY,),
}
"""Where one request of 1,024 tokens would not show it; that is what the others run."""


_ON_A_CHUNK = {"allocator-churn", "lm-head-all-tokens"}
"""Those that show where a step adds many tokens: its buffers are large, and it has rows that nobody samples from."""


def cases_of(slowdown: str, base: LabConfig) -> Iterator[Case]:
    """Yield the cases of one slowdown.

    Raises:
        UsageError: there is none of that name.
    """
    found = slowdowns.find(slowdown)
    for contexts in _REQUESTS.get(slowdown, (_ALONE,)):
        config = replace(base, slowdown=slowdown, contexts=contexts)
        if slowdown in _ON_A_CHUNK:
            config = replace(config, new_tokens=_CHUNK)
        yield Case(config, found.modes)
    if slowdown == "full-pool-cast":  # the control: only the pool's size changes
        for slots in _SMALLER_POOLS:
            yield Case(replace(base, slowdown=slowdown, contexts=_ALONE, pool_slots=slots), ("graph",))


def twin_of(case: Case, mode: Mode) -> tuple[Case, Mode]:
    """Return the same requests with nothing switched on, and how that runs beside a slow case in this mode."""
    assert case.config.slowdown is not None  # noqa: S101 -- asked of slow cases only
    twin_mode = slowdowns.find(case.config.slowdown).twin or mode
    return Case(replace(case.config, slowdown=None), (twin_mode,)), twin_mode
