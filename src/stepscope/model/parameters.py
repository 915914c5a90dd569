"""How many parameters a model has, in all and in use for one token."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope.model.catalogue import Component, rank_weights
from stepscope.model.parallel import Parallel

if TYPE_CHECKING:
    from stepscope.model.spec import ModelSpec


class Parameters(NamedTuple):
    """Counts without multi-token-prediction layers; the embedding and the LM head are counted."""

    total: int
    active: int
    """Of which one token uses: of the routed experts only those it is sent to."""


def count_parameters(spec: ModelSpec) -> Parameters:
    """Count the parameters of the whole model."""
    total = active = 0
    for weight in rank_weights(spec, Parallel()):
        if weight.is_derived:
            continue
        count = weight.elements * weight.count
        total += count
        if weight.component is Component.EXPERTS and spec.experts is not None:
            count = count * spec.experts.per_token // spec.experts.routed
        active += count
    return Parameters(total, active)
