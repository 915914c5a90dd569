"""What the ranks of a group must send each other in a decode step."""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING, NamedTuple

from stepscope.pipeline.cost.collectives import all_reduce_sends, share_out_sends
from stepscope.pipeline.cost.rank import ACTIVATION_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.model import Experts, ModelSpec, Parallel
    from stepscope.pipeline.cost.rank import Load, Rank


class Exchange(NamedTuple):
    """Collectives of one kind in a step."""

    times: int
    bytes: float
    """Bytes that a rank sends in each."""


def exchanges(rank: Rank, load: Load) -> Iterator[Exchange]:
    """Yield the collectives of a step; those of the embedding and of the sampler, one each, are left out."""
    spec, parallel = rank.spec, rank.parallel
    layers, hidden = len(spec.layers), spec.hidden_size * ACTIVATION_BYTES
    if parallel.attention_tp > 1:
        yield Exchange(layers, all_reduce_sends(parallel.attention_tp, load.attended(parallel) * hidden))
    if parallel.attention_dp == 1:
        if parallel.tp > 1:
            yield Exchange(layers, all_reduce_sends(parallel.tp, load.batch * hidden))
        return
    gathered = share_out_sends(parallel.tp, load.batch * hidden)
    if parallel.dense_dp < parallel.attention_dp:
        yield Exchange(2 * len(spec.dense_layers), gathered)  # gathered before the MLP, reduced and scattered after it
    elif parallel.dense_tp > 1:
        yield Exchange(
            len(spec.dense_layers), all_reduce_sends(parallel.dense_tp, load.share(parallel.dense_dp) * hidden)
        )
    if spec.experts is not None:
        yield Exchange(2 * len(spec.expert_layers), min(gathered, _to_experts(spec, spec.experts, parallel, load)))


def _to_experts(spec: ModelSpec, experts: Experts, parallel: Parallel, load: Load) -> float:
    """Return the bytes that a rank sends if each token goes only to where its experts are: all-to-all.

    k of E experts lie in ep · (1 − C(E − E/ep, k) / C(E, k)) of the groups that share them out, as expected of random
    routing; a copy goes to every rank of such a group but the token's own. The ranks that hold a token share its
    sending.
    """
    others = experts.routed - experts.routed // parallel.ep
    missed = comb(others, experts.per_token) / comb(experts.routed, experts.per_token)
    ranks = parallel.ep * (1 - missed) * parallel.expert_tp * (parallel.tp - 1) / parallel.tp
    return load.attended(parallel) / parallel.attention_tp * ranks * spec.hidden_size * ACTIVATION_BYTES
