"""The necessary work of a decode step on one rank, component by component.

Weights count once a step, whatever the batch. Activations stay on the chip from one multiplication to the next; what is
written to memory is the residual stream, the cache's new rows and the logits. B is the number of requests that the rank
attends to (of the busiest group under attention DP), N the requests of all groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope.model import Component
from stepscope.pipeline.cost.cache import index_append, index_scores, kv_append, kv_read, selects
from stepscope.pipeline.cost.experts import expected_experts
from stepscope.pipeline.cost.rank import ACTIVATION_BYTES
from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.model import Experts, ModelSpec, SparseIndex, Weight
    from stepscope.pipeline.cost.rank import Load, Rank

EMBEDDING = "embedding"
NORMS = "norms"
PROJECTIONS = "attention projections"
INDEX = "sparse index"
KV_APPEND = "KV append"
KV_READ = "KV read"
DENSE_MLP = "dense MLP"
ROUTER = "router"
ROUTING = "routing"
EXPERTS = "experts"
SHARED_EXPERT = "shared expert"
LM_HEAD = "LM head"
SAMPLING = "sampling"

_INDEX_KEY_PROJECTION = "index_k_proj"


class Part(NamedTuple):
    """A component of the floor, and its works, whose traffic and arithmetic overlap."""

    name: str
    works: Sequence[Work]


def parts(rank: Rank, load: Load) -> Iterator[Part]:
    """Yield the components in the order in which a step runs them; those that the model lacks are left out."""
    spec, parallel, attended = rank.spec, rank.parallel, load.attended(rank.parallel)
    yield Part(EMBEDDING, [_embedding(spec, attended)])
    yield Part(NORMS, [_residual_stream(spec, attended), *(_norm(norm, attended) for norm in rank.of(Component.NORM))])
    yield Part(PROJECTIONS, _all_linear(rank, Component.ATTENTION, attended))
    if spec.sparse_index is not None:
        yield Part(INDEX, list(_sparse_index(rank, spec.sparse_index, load)))
    yield Part(KV_APPEND, [kv_append(rank, load)])
    yield Part(KV_READ, [read.work * read.layers for read in kv_read(rank, load)])
    if spec.dense_layers:
        yield Part(DENSE_MLP, _all_linear(rank, Component.DENSE_MLP, load.share(parallel.dense_dp)))
    if spec.experts is not None:
        yield Part(ROUTER, _all_linear(rank, Component.ROUTER, load.batch))
        yield Part(ROUTING, [_routing(spec.experts, len(spec.expert_layers) * load.batch)])
        yield Part(EXPERTS, [_routed(spec.experts, weight, load.batch) for weight in rank.of(Component.EXPERTS)])
        if spec.experts.shared:
            tokens = load.share(parallel.shared_dp)
            yield Part(SHARED_EXPERT, _all_linear(rank, Component.SHARED_EXPERT, tokens))
    yield from _output(rank, load)


def _all_linear(rank: Rank, component: Component, tokens: int) -> list[Work]:
    return [_linear(weight, tokens) for weight in rank.of(component)]


def _linear(weight: Weight, tokens: int) -> Work:
    """A weight read once and multiplied with each token: 2 operations an element and token; a bias is added, 1."""
    flops = (2 if len(weight.shape) > 1 else 1) * tokens * weight.elements
    return Work(weight.bytes * weight.count, flops * weight.count, weight.format.multiply_dtype)


def _routed(experts: Experts, weight: Weight, tokens: int) -> Work:
    """The experts on the rank: those read that N tokens are expected to hit, each token multiplied with k of E.

    E(1 − (1 − k/E)ᴺ) of all experts are hit, and the same share of those on each rank.
    """
    hit = expected_experts(experts.routed, experts.per_token, tokens) / experts.routed
    every = _linear(weight, tokens)
    return Work(every.bytes * hit, every.flops * experts.per_token / experts.routed, every.multiply_dtype)


def _routing(experts: Experts, tokens: int) -> Work:
    """The choice of k experts a token from their scores: an int32 id and a float32 weight written for each."""
    return Work(tokens * experts.per_token * (4 + 4))


def _residual_stream(spec: ModelSpec, tokens: int) -> Work:
    """Each token's stream, read and written with a branch added: by the norm before each branch, and by the last.

    A layer has two branches at most: what further norms it has find their input, a branch's result, on the chip.
    """
    passes = len(spec.layers) * min(len(spec.layer_norms), 2) + 1
    return Work(passes * 2 * tokens * spec.hidden_size * ACTIVATION_BYTES)


def _norm(weight: Weight, tokens: int) -> Work:
    """A norm's weight. Operations of an RMSNorm: add, square, sum, scale, weight."""
    return Work(weight.count * weight.bytes, weight.count * 5 * tokens * weight.elements)


def _embedding(spec: ModelSpec, tokens: int) -> Work:
    """One row of the embedding read and written for each of B tokens."""
    return Work(2 * tokens * spec.hidden_size * ACTIVATION_BYTES)


def _sparse_index(rank: Rank, index: SparseIndex, load: Load) -> Iterator[Work]:
    """The index's projections and keys; where it would select everything, only the new key, which later steps need."""
    for weight in rank.of(Component.INDEX):
        if selects(index, load) or weight.name == _INDEX_KEY_PROJECTION:
            yield _linear(weight, load.attended(rank.parallel))
    yield index_append(rank, index, load)
    if selects(index, load):
        scores = index_scores(rank, index, load)
        yield scores.work * scores.layers


def _output(rank: Rank, load: Load) -> Iterator[Part]:
    """The LM head, which writes a row of logits a token, and the sampler, which reads them: a comparison a logit.

    A head tied to the embedding holds no values of its own, and must be read all the same.
    """
    heads = [weight for weight in rank.weights if weight.component is Component.LM_HEAD]
    tokens = load.share(rank.parallel.lm_head_dp)
    logits = tokens * sum(weight.shape[0] for weight in heads if weight.is_matrix)
    yield Part(LM_HEAD, [*(_linear(weight, tokens) for weight in heads), Work(logits * ACTIVATION_BYTES)])
    yield Part(SAMPLING, [Work(logits * ACTIVATION_BYTES, logits)])
