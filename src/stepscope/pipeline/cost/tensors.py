"""Which tensor of the model an op works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.model import How, match_shape
from stepscope.pipeline.cost.ops import as_gemm

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self

    from stepscope.model import Deployment, KVPoolLayout, Match, Weight
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.cost.ops import Call, Gemm


@dataclass(frozen=True, slots=True)
class Tensors:
    """The tensors of the model on one rank, as shapes of a phase's ops are compared with them."""

    weights: Sequence[Weight]
    kv_pool: KVPoolLayout | None
    slots: int
    """Rows of the largest tensor that has the pool's row; what has fewer was gathered from it."""

    @classmethod
    def of(cls, deployment: Deployment, groups: Iterable[WorkGroup]) -> Self:
        """Collect what is known of a deployment, and the size of the pool from a phase's work."""
        shapes = [shape for group in groups for shape in group.input_shapes or ()]
        return cls(deployment.weights, deployment.kv_pool, most_slots(deployment.kv_pool, shapes))

    def name(self, call: Call) -> str | None:
        """Return what a call multiplies by, looks up or moves, for people; None where nothing fits."""
        gemm = as_gemm(call)
        if gemm is not None:
            return self._factor(gemm)
        shapes = [shape for index, shape in enumerate(call.shapes) if call.is_tensor(index)]
        rows = most_slots(self.kv_pool, shapes)
        if self.kv_pool and rows > 1:
            return self.kv_pool.describe(rows) if rows == self.slots else f"{rows:,} rows of the KV pool"
        found = [match_shape(self.weights, shape, least=How.EXACT) for shape in shapes]
        return " and ".join(_names(matches) for matches in found if matches) or None

    def _factor(self, gemm: Gemm) -> str | None:
        """Return the second factor of a multiplication: a weight, or the keys or values of the KV pool."""
        matches = match_shape(self.weights, gemm.weight_shape)
        if matches and matches[0].how is How.EXACT:
            return _names(matches)
        if self.kv_pool and gemm.k == self.kv_pool.row:
            return f"keys of {gemm.n:,} tokens"
        if self.kv_pool and gemm.by_batch and gemm.n == self.kv_pool.latent:
            return f"values of {gemm.k:,} tokens"
        return f"{_names(matches)} ({matches[0].how.words})" if matches else None


def most_slots(pool: KVPoolLayout | None, shapes: Iterable[Sequence[int]]) -> int:
    """Return the rows of the largest tensor that has the pool's row; 0: none has."""
    return 0 if pool is None else max((pool.slots_of_shape(shape) or 0 for shape in shapes), default=0)


def _names(matches: Sequence[Match]) -> str:
    return " or ".join(match.weight.name for match in matches)
