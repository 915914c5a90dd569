"""The floor: the least time that a model's decode step can take on given hardware, part by part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope import document
from stepscope.dtypes import item_bytes
from stepscope.model import Component, Mla
from stepscope.pipeline.cost import Work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.model import ModelSpec, Parallel, Weight
    from stepscope.pipeline.cost import Ceilings


@dataclass(frozen=True, slots=True)
class Load:
    """What a decode step serves."""

    batch: int
    """Requests, each of which gets one token."""
    context: int
    """Live tokens of each request."""
    kv_dtype: str
    """Type of the KV pool."""


def step_floor(  # noqa: PLR0913 -- the model, its ranks and the machine
    spec: ModelSpec,
    parallel: Parallel,
    weights: Sequence[Weight],
    *,
    load: Load,
    ceilings: Ceilings,
    measured_us: float | None = None,
) -> document.Floor:
    """Return the least time of a decode step on one rank.

    Args:
        spec: the model.
        parallel: its ranks.
        weights: the weights on one rank, in their formats.
        load: what the step serves.
        ceilings: the GPU's rates.
        measured_us: what such a step was measured to take.
    """
    components = []
    for name, work in _parts(spec, parallel, weights, load):
        time_us, bound = ceilings.floor(work)
        components.append(
            document.FloorComponent(name=name, time_us=time_us, bytes=work.bytes, flops=work.flops, bound=bound)
        )
    floor_us = sum(component.time_us for component in components)
    return document.Floor(
        floor_us_per_step=floor_us,
        components=components,
        measured_us=measured_us,
        unexplained_us=None if measured_us is None else measured_us - floor_us,
        tokens_per_s=load.batch / floor_us * 1e6,
        assumptions=list(spec.notes),
    )


def expected_experts(routed: int, per_token: int, tokens: int) -> float:
    """Return how many different experts `tokens` tokens are expected to hit, each routed at random.

    Each token misses a given expert with probability 1 − k/E, all of them with (1 − k/E)ⁿ.
    """
    return routed * (1 - (1 - per_token / routed) ** tokens)


def _parts(spec: ModelSpec, parallel: Parallel, weights: Sequence[Weight], load: Load) -> Iterator[tuple[str, Work]]:
    attending = load.batch / parallel.attention_dp
    for component in Component:
        own = [weight for weight in weights if weight.component is component and not weight.is_derived]
        if component is Component.EMBEDDING or not own:
            continue
        tokens = attending if component in {Component.ATTENTION, Component.INDEX} else load.batch
        works = [_weight_work(spec, weight, tokens) for weight in own]
        total = works[0]
        for work in works[1:]:
            total += work
        yield str(component), total
        if component is Component.ATTENTION:
            yield "KV read", _kv_work(spec, parallel, load, attending)


def _weight_work(spec: ModelSpec, weight: Weight, tokens: float) -> Work:
    share = 1.0
    flops = 2 * tokens * weight.elements
    if weight.component is Component.EXPERTS and spec.experts is not None:
        routed, per_token = spec.experts.routed, spec.experts.per_token
        share = expected_experts(routed, per_token, int(tokens)) / routed
        flops *= per_token / routed
    return Work(weight.bytes * weight.count * share, flops * weight.count, weight.format.multiply_dtype)


def _kv_work(spec: ModelSpec, parallel: Parallel, load: Load, requests: float) -> Work:
    heads = spec.num_attention_heads // parallel.attention_tp
    size = item_bytes(load.kv_dtype)
    total = Work(0)
    for layer in spec.layers:
        tokens = min(load.context, layer.window or load.context)
        if spec.sparse_index is not None:
            tokens = min(tokens, spec.sparse_index.topk)
        attention = spec.attention
        if isinstance(attention, Mla):
            row, multiplied = attention.kv_lora_rank + attention.qk_rope_head_dim, 2 * attention.kv_lora_rank
            multiplied += attention.qk_rope_head_dim
        else:
            keys = max(attention.num_key_value_heads // parallel.attention_tp, 1)
            row, multiplied = 2 * keys * attention.head_dim, 2 * attention.head_dim
        total += Work(requests * tokens * row * size, 2 * requests * tokens * heads * multiplied)
    return total
