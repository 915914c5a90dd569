"""What a floor is of, from what a user tells: a model as it is served, and the GPU that it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from stepscope.document import FloorCase, encodable
from stepscope.errors import UsageError
from stepscope.hardware import find_gpu
from stepscope.model import Deployment
from stepscope.pipeline.cost import Ceilings
from stepscope.pipeline.cost.floor import Load, MeasuredSteps, Rank, step_floor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self, Unpack

    from stepscope.document import Floor
    from stepscope.model import Served

_KV_NAMES = {"BFloat16": "bf16", "Float8_e4m3fn": "fp8"}
"""What the command line calls a type of the KV cache."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One rank of a model, all of it known but the batch."""

    model: str
    gpu: str
    ceilings: Ceilings
    rank: Rank
    weights: str
    """The format of most of them."""
    kv_dtype: str
    """As torch writes it."""
    context: int
    """Live tokens of each request."""
    assumptions: Sequence[str]

    @classmethod
    def of(cls, gpu: str, context: int, *, weights: str | None, kv_dtype: str | None, **served: Unpack[Served]) -> Self:
        """Check what a user tells; without ranks there is one.

        Raises:
            UsageError: a name is not known, the model does not divide by the ranks, or the GPU's rates are not known.
        """
        if served.get("model") is None and served.get("server_info") is None:
            raise UsageError("--model is needed")
        ceilings = Ceilings.of(find_gpu(gpu, None))
        if ceilings is None:
            raise UsageError(f"--gpu {gpu}: the rate of its memory is not known")
        if served.get("tp") is None and served.get("server_info") is None:
            served["tp"] = 1
        found = Deployment.of(context=context, weights=weights, kv_dtype=kv_dtype, **served)
        if found.name is None or found.spec is None or found.parallel is None:
            raise UsageError(f"--model is needed{f': {found.notes[0]}' if found.notes else ''}")
        untold = [] if found.formats is not None else ["weights are BF16, as nothing tells otherwise (--weights)"]
        return cls(
            model=encodable(found.name),
            gpu=gpu,
            ceilings=ceilings,
            rank=Rank(found.spec, found.parallel, found.weights),
            weights=found.main_format.name,
            kv_dtype=found.kv_dtype or "BFloat16",
            context=context,
            assumptions=[*found.notes, *untold],
        )

    def floor(self, batch: int, *, measured_us: float | None, steps: Sequence[MeasuredSteps]) -> Floor:
        """Return the floor of a step of so many requests, and the way to what was measured, as `step_floor` does."""
        case = FloorCase(
            model=self.model,
            gpu=self.gpu,
            tp=self.rank.parallel.tp,
            ep=self.rank.parallel.ep,
            dp=self.rank.parallel.attention_dp,
            weights=self.weights,
            kv_dtype=_KV_NAMES.get(self.kv_dtype, self.kv_dtype),
            batch=batch,
            context=self.context,
        )
        load = Load(batch, self.context, self.kv_dtype)
        found = step_floor(case, self.rank, load, self.ceilings, measured_us=measured_us, steps=steps)
        return msgspec.structs.replace(found, assumptions=[*self.assumptions, *found.assumptions])
