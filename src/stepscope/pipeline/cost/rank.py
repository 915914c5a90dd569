"""A model as one rank holds it, and what a decode step serves."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.model import Component, ModelSpec, Parallel, Weight

ACTIVATION_BYTES = 2
"""Hidden states and logits are BF16."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A model as one rank holds it."""

    spec: ModelSpec
    parallel: Parallel
    weights: Sequence[Weight]

    def of(self, component: Component) -> list[Weight]:
        """Return the weights of a component, each value once."""
        return [weight for weight in self.weights if weight.component is component and not weight.is_derived]


@dataclass(frozen=True, slots=True)
class Load:
    """What a decode step serves."""

    batch: int
    """Requests of all attention groups together, each of which gets one token."""
    context: int
    """Live tokens of each request, the new one included."""
    kv_dtype: str
    """Type of the KV pool."""

    def attended(self, parallel: Parallel) -> int:
        """Return the requests of the busiest attention group."""
        return self.share(parallel.attention_dp)

    def share(self, groups: int) -> int:
        """Return the requests of the busiest of so many groups, each of which holds the whole of a part."""
        return ceil(self.batch / groups)
