"""How many parameters a model has, in all and in use for one token."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope.model.catalogue import Component, mtp_weights, rank_weights
from stepscope.model.parallel import Parallel

if TYPE_CHECKING:
    from stepscope.model.spec import ModelSpec


class Parameters(NamedTuple):
    """Counts of values, each weight once however it is stored."""

    total: int
    """The embedding and the LM head are counted, multi-token prediction is not."""
    active: int
    """Of which one token uses: of the routed experts only those it is sent to. The whole embedding is counted here too,
    though a token reads one row of it."""
    embedding: int
    """Of the total, the embedding, which some publishers leave out of the active count (gpt-oss)."""
    lm_head: int
    """Of the total, the LM head; 0 where it is the embedding."""
    mtp: int
    """What only multi-token prediction needs, on top of the total."""


def count_parameters(spec: ModelSpec) -> Parameters:
    """Count the parameters of the whole model."""
    total = active = 0
    by_component = dict.fromkeys(Component, 0)
    for weight in rank_weights(spec, Parallel()):
        if weight.is_derived:
            continue
        count = weight.elements * weight.count
        total += count
        by_component[weight.component] += count
        if weight.component is Component.EXPERTS and spec.experts is not None:
            count = count * spec.experts.per_token // spec.experts.routed
        active += count
    mtp = sum(weight.elements * weight.count for weight in mtp_weights(spec, Parallel()) if not weight.is_derived)
    return Parameters(total, active, by_component[Component.EMBEDDING], by_component[Component.LM_HEAD], mtp)
