"""What a floor rests on, a sentence each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import units
from stepscope.pipeline.cost.cache import selects
from stepscope.pipeline.cost.experts import expected_experts
from stepscope.pipeline.cost.floor.collectives import exchanges
from stepscope.pipeline.cost.floor.components import parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.pipeline.cost import Ceilings
    from stepscope.pipeline.cost.floor.measured import MeasuredSteps
    from stepscope.pipeline.cost.rank import Load, Rank

_TYPES = {"BFloat16": "BF16", "Float8_e4m3fn": "FP8", "Float4": "FP4"}


def assumptions(rank: Rank, load: Load, ceilings: Ceilings, steps: Sequence[MeasuredSteps]) -> Iterator[str]:
    """Yield the assumptions of a floor, and of what traces say beside it."""
    yield (
        "within a component all traffic and arithmetic overlap, and components follow one another; every weight in use"
        " is read from memory once a step, and activations stay on the chip but for the residual stream and the logits"
    )
    yield from _formats(rank)
    yield from _model(rank, load)
    yield from _rates(rank, load, ceilings)
    yield from _links(rank, load, ceilings)
    yield "whether weights and cache fit the GPU's memory is not looked at"
    if steps:
        yield "traced steps hold the profiler's own cost, above all in idle time; kernels are matched by their class"


def _formats(rank: Rank) -> Iterator[str]:
    """Say in which formats the weights are stored, by component; the largest part is called the rest."""
    held: dict[str, list[str]] = {}
    for weight in rank.weights:
        names = held.setdefault(f"{weight.format.name} ({weight.format.bits:.3g} bits a weight)", [])
        if weight.component not in names:
            names.append(weight.component)
    *others, rest = sorted(held, key=lambda name: len(held[name]))
    told = [f"{', '.join(held[name])} {name}" for name in others]
    yield "weights: " + "; ".join([*told, f"{'the rest' if others else 'all'} {rest}"])


def _model(rank: Rank, load: Load) -> Iterator[str]:
    spec, parallel = rank.spec, rank.parallel
    if spec.experts is not None:
        hit = expected_experts(spec.experts.routed, spec.experts.per_token, load.batch)
        shared = f", the same share in each of {parallel.ep} groups of ranks" if parallel.ep > 1 else ""
        yield (
            f"routing is random: {_plural(load.batch, 'token is', 'tokens are')} expected to hit"
            f" {units.count(round(hit, 1))} of the {spec.experts.routed} experts of a layer{shared}"
        )
    if spec.sparse_index is not None and not selects(spec.sparse_index, load):
        yield (
            f"the sparse index would select all of the context, which is no longer than {spec.sparse_index.topk:,}"
            " tokens: only its new keys are necessary"
        )
    if parallel.attention_dp > 1:
        requests = _plural(load.attended(parallel), "request", "requests")
        yield f"the busiest of {parallel.attention_dp} attention groups has {requests}"
    if spec.mtp_layers:
        yield "multi-token-prediction layers do not run"


def _rates(rank: Rank, load: Load, ceilings: Ceilings) -> Iterator[str]:
    yield f"memory at {units.rate(ceilings.gb_per_s)}{_source(ceilings, 'memory')}"
    used = {work.multiply_dtype for part in parts(rank, load) for work in part.works if work.flops}
    for dtype in sorted(used):
        name, own = _TYPES.get(dtype, dtype), ceilings.multiplied_as(dtype)
        if own not in ceilings.tflops:
            yield f"{name} is multiplied in no time: the GPU's rate is not known"
        elif own == dtype:
            yield f"{name} is multiplied at {ceilings.tflops[own]:,.0f} TFLOPS{_source(ceilings, own)}"
        else:
            yield f"{name} is multiplied as {_TYPES.get(own, own)}, for which alone there is a rate"


def _links(rank: Rank, load: Load, ceilings: Ceilings) -> Iterator[str]:
    count = sum(exchange.times for exchange in exchanges(rank, load))
    if not count:
        return
    if ceilings.link_gb_per_s is None:
        yield f"the bytes of the {count} collectives take no time: the rate of the GPU's links is not known"
    else:
        rate = f"{units.rate(ceilings.link_gb_per_s)} in one direction{_source(ceilings, 'link')}"
        yield f"links at {rate}; no switch reduces on the way"
    if ceilings.collective_latency_us is None:
        yield (
            f"the latency of collectives is not known for this GPU and counts nothing; each µs of it would add"
            f" {units.time(count)} a step ({count} collectives)"
        )
    else:
        latency = units.time(ceilings.collective_latency_us)
        yield f"each of the {count} collectives has a latency of {latency}{_source(ceilings, 'latency')}"


def _source(ceilings: Ceilings, name: str) -> str:
    return f" ({ceilings.sources[name]})" if name in ceilings.sources else ""


def _plural(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"
