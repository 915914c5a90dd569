"""What is run: the model's slice, the requests, the pool, and what is switched on."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.errors import UsageError
from stepscope.model import Mla, ModelSpec, preset_names, read_config

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = 64
"""Slots of a page."""

TINY = "tiny"
"""A model of a megabyte with all parts of the large ones, for machines without a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabConfig:
    """One run. Lengths are those before the first step."""

    model: str = "glm-5"
    """A preset of `stepscope.model`, or `tiny`."""
    layers: int = 16
    """Layers that run, the first of the model; as many as it has at most."""
    weight_sets: int | None = None
    """Layers of a kind with weights of their own, the others share them; None: all."""
    tp_slice: int = 8
    """Ranks that the model is split over; one of them runs."""
    contexts: tuple[int, ...] = (1024,)
    """Live tokens of each request."""
    new_tokens: int = 1
    """Tokens that a step adds to each request: 1 decodes; more extend, as a chunk of a prompt does."""
    pool_slots: int = 495_552
    """Slots of each layer's pool."""
    attention: str = "gather-cast"
    """How attention reads the pool; a name in `attention.READERS`."""
    graph: bool = True
    """Whether the step is replayed as a CUDA graph."""
    slowdown: str | None = None
    """What is switched on; a name in `slowdowns`."""
    seed: int = 0

    def hf_config(self) -> dict[str, Any]:
        """Return the model's `config.json` with the layers that run.

        Raises:
            UsageError: there is no such model.
        """
        whole = _config(self.model)
        if not self.layers >= 1:
            raise UsageError(f"--layers {self.layers}: at least 1")
        layers = min(self.layers, whole["num_hidden_layers"])
        return {**whole, "num_hidden_layers": layers}

    def spec(self) -> ModelSpec:
        """Return the model with the layers that run.

        Raises:
            UsageError: there is no such model, or it is none that the engine can run.
        """
        spec = read_config(self.hf_config())
        if not isinstance(spec.attention, Mla) or spec.attention.q_lora_rank is None or spec.experts is None:
            raise UsageError(f"--model {self.model}: the laboratory runs models with low-rank queries and experts only")
        if not spec.experts.shared:
            raise UsageError(f"--model {self.model}: the laboratory runs models with a shared expert only")
        return spec


def contexts_of(batch: int, context: Sequence[int]) -> tuple[int, ...]:
    """Return each request's length: one for all, or one each.

    Raises:
        UsageError: there are as many lengths as neither.
    """
    if len(context) not in {1, batch}:
        raise UsageError(f"--context was given {len(context)} times for a batch of {batch}")
    return tuple(context) * (batch if len(context) == 1 else 1)


def _config(model: str) -> dict[str, Any]:
    if model == TINY:
        file = resources.files("stepscope.lab") / "tiny.json"
    elif model in preset_names():
        file = resources.files("stepscope.model") / "presets" / f"{model}.json"
    else:
        raise UsageError(f"--model {model}: known are {', '.join([*preset_names(), TINY])}")
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
