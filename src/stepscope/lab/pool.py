"""The paged KV pool: one preallocated FP8 tensor a layer, and a page table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from stepscope.errors import UsageError
from stepscope.lab.config import PAGE

if TYPE_CHECKING:
    from collections.abc import Sequence

_AT_ONCE = 1 << 16
"""Slots that are filled at once, so that filling needs little memory of its own."""


class View(NamedTuple):
    """What a step reads and writes, worked out once for all layers."""

    positions: torch.Tensor
    """Of each new token in its request: [requests, new tokens]."""
    written: torch.Tensor
    """The slot of each new token: [requests × new tokens]."""
    slots: torch.Tensor
    """The slot of each token that fits into the request's pages: [requests, room]."""
    hidden: torch.Tensor
    """What is added to a score: −∞ where a token is not to be seen, else 0: [requests, new tokens, 1, room]."""


class PagedPool:
    """Pools of all layers with one page table; requests get all their pages at the start."""

    def __init__(  # noqa: PLR0913, PLR0917 -- what a pool is made of
        self, layers: int, slots: int, row: int, contexts: Sequence[int], room: int, device: torch.device, seed: int
    ) -> None:
        pages = -(-(max(contexts) + room) // PAGE)
        if slots // PAGE < pages * len(contexts):
            raise UsageError(f"--pool-slots {slots}: the requests need {pages * len(contexts) * PAGE}")
        generator = torch.Generator(device).manual_seed(seed)
        self.layers = [_filled(slots, row, device, generator) for _ in range(layers)]
        order = torch.randperm(slots // PAGE, generator=torch.Generator().manual_seed(seed))
        self.page_table = order[: pages * len(contexts)].view(len(contexts), pages).to(device)
        self.start = torch.tensor(contexts, device=device)
        self.lengths = self.start.clone()
        """Live tokens of each request: [requests]."""
        self._in_page = torch.arange(PAGE, device=device)
        self._places = torch.arange(pages * PAGE, device=device)

    def view(self, new_tokens: int, dtype: torch.dtype) -> View:
        """Return what a step sees that adds `new_tokens` to each request."""
        positions = self.lengths[:, None] + self._places[:new_tokens]
        pages = self.page_table.gather(1, positions // PAGE)
        unseen = self._places > positions[:, :, None]
        return View(
            positions=positions,
            written=(pages * PAGE + positions % PAGE).flatten(),
            slots=(self.page_table[:, :, None] * PAGE + self._in_page).flatten(1),
            hidden=torch.zeros_like(unseen, dtype=dtype).masked_fill_(unseen, float("-inf"))[:, :, None],
        )

    def reset(self) -> None:
        """Set the requests back to their first lengths."""
        self.lengths.copy_(self.start)


def _filled(slots: int, row: int, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    pool = torch.empty(slots, 1, row, device=device, dtype=torch.float8_e4m3fn)
    for part in torch.split(pool, _AT_ONCE):
        part.copy_(torch.empty(part.shape, device=device).normal_(generator=generator))
    return pool
