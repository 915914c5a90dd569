"""How a model is served: the facts that a trace does not hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.model.catalogue import LINEAR, Component, Weight, rank_weights
from stepscope.model.config import load_model
from stepscope.model.formats import WeightFormat, find_format
from stepscope.model.kv_pool import PUBLISHED_MLA, KVPoolLayout, kv_pool_layout
from stepscope.model.parallel import Parallel
from stepscope.model.spec import Mla, ModelSpec

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on one rank, and the load it serves."""

    name: str | None
    """None where the model was not told."""
    spec: ModelSpec | None
    parallel: Parallel | None
    """None where the ranks were not told."""
    context: int | None
    """Live tokens of a request."""
    weights: tuple[Weight, ...]
    kv_pool: KVPoolLayout

    @classmethod
    def of(cls, model: str | None, tp: int | None, context: int | None) -> Self:
        """Build a deployment from what the command line tells; without `tp` no weight is known, only the pool.

        Raises:
            UsageError: there is no such model, or it does not divide by `tp`, or `tp` is given alone.
        """
        if model is None and tp is not None:
            raise UsageError(f"--tp {tp}: says nothing without --model")
        if model is None:
            return cls(None, None, None, context, (), PUBLISHED_MLA)
        spec = load_model(model)
        parallel = Parallel(tp) if tp else None
        weights = rank_weights(spec, parallel) if parallel else ()
        pool = kv_pool_layout(spec.attention) if isinstance(spec.attention, Mla) else PUBLISHED_MLA
        return cls(model, spec, parallel, context, weights, pool)


def weight_formats(spec: ModelSpec, name: str) -> dict[Component, WeightFormat]:
    """Return the format of each kind of layer, from the one that the command line names.

    It is the format of the routed experts, or of every linear layer of a dense model; the rest stays BF16, except that
    with FP8 it is FP8 too. Norms, the router, the embedding and the LM head are never converted.

    Raises:
        UsageError: there is no such format.
    """
    named = find_format(name)
    if spec.experts is not None and not name.startswith("fp8"):
        return {Component.EXPERTS: named}
    return dict.fromkeys(LINEAR, named)
