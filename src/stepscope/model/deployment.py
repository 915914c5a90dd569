"""How a model is served: the facts that a trace does not hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.model.catalogue import Weight, rank_weights
from stepscope.model.kv_pool import PUBLISHED_MLA, KVPoolLayout, kv_pool_layout
from stepscope.model.spec import ModelSpec, load_preset

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on one rank, and the load it serves."""

    name: str | None
    """None where the model was not told."""
    spec: ModelSpec | None
    tp: int | None
    """Ranks of the tensor-parallel group; None where it was not told."""
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
            return cls(None, None, tp, context, (), PUBLISHED_MLA)
        spec = load_preset(model)
        weights = rank_weights(spec, tp) if tp else ()
        return cls(model, spec, tp, context, weights, kv_pool_layout(spec))
