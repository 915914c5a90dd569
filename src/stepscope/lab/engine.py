"""The engine: requests in a batch, one step at a time, eager or replayed as a CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.profiler import record_function

from stepscope.errors import UsageError
from stepscope.lab import slowdowns
from stepscope.lab.attention import reader
from stepscope.lab.layers import Model, rope_angles
from stepscope.lab.parts import healthy
from stepscope.lab.pool import PagedPool
from stepscope.lab.weights import Weights, make_weights
from stepscope.model import Mla

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.lab.config import LabConfig

ROOM = 64
"""Tokens that a request has room for when it decodes, until `reset`."""
WARM_UP = 1
"""Eager passes before a graph is captured, in which libraries choose their kernels and Triton compiles."""


class Engine:
    """One rank of a model with its requests.

    Raises:
        UsageError: the model, the attention, the slowdown or the pool's size does not fit.
    """

    def __init__(
        self,
        config: LabConfig,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.bfloat16,
        weights: Weights | None = None,
        reduce: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
    ) -> None:
        spec = config.spec()
        mla = spec.attention
        if not isinstance(mla, Mla):
            raise TypeError("the engine runs latent attention")  # LabConfig.spec refuses it before
        parts = healthy(device, reader(config.attention), graph=config.graph and device.type == "cuda")
        if config.slowdown is not None:
            parts = slowdowns.find(config.slowdown).apply(parts)
        self.config, self.device, self.dtype, self.parts = config, device, dtype, parts
        weights = weights or make_weights(
            spec, config.tp_slice, device, dtype, sets=config.weight_sets, seed=config.seed
        )
        self.live = len(config.contexts)
        """Requests that are real; those after them are padding."""
        self.requests = max(self.live, parts.bucket or 0)
        contexts = (*config.contexts, *(1,) * (self.requests - self.live))
        room = ROOM if config.new_tokens == 1 else config.new_tokens
        row = mla.kv_lora_rank + mla.qk_rope_head_dim
        self.pool = PagedPool(len(spec.layers), config.pool_slots, row, contexts, room, device, config.seed)
        self.model = Model(spec, weights, self.pool.layers, parts, reduce)
        self._angles = rope_angles(mla.qk_rope_head_dim, max(contexts) + room, device)
        vocabulary = len(weights.outside["embedding"])
        self._prompt = torch.randint(
            vocabulary, (self.requests, config.new_tokens), generator=torch.Generator().manual_seed(config.seed)
        ).to(device)
        self.tokens = self._prompt.clone()
        """The new tokens of the next step: [requests, new tokens]."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits = torch.empty(0)

    @property
    def annotation(self) -> str:
        """The step's name in a trace, as SGLang writes it."""
        if self.config.new_tokens == 1:
            return f"step[DECODE bs={self.live}]"
        return f"step[EXTEND bs={self.live} toks={self.live * self.config.new_tokens}]"

    @torch.inference_mode()
    def capture(self) -> None:
        """Warm up, and capture the graph where there is to be one. The requests are where they were afterwards."""
        for _ in range(WARM_UP):
            self._forward()
        if self.parts.graph:
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            capturing = torch.cuda.graph(self._graph, capture_error_mode="thread_local")  # NCCL watches from another
            with record_function(f"capture_{self.requests}"), capturing:
                self._logits = self._forward()

    @torch.inference_mode()
    def step(self) -> torch.Tensor:
        """Run a step, and return the logits of the live requests: [live, vocabulary]. The next overwrites a graph's."""
        self.parts.before_step(self)
        with record_function(self.annotation):
            if self._graph is None:
                self._logits = self._forward()
            else:
                self._graph.replay()
        chosen = self.parts.sample(self._logits)
        if self.config.new_tokens == 1:
            self.tokens.copy_(chosen[:, None])
            self.pool.lengths += 1
        return self._logits[: self.live]

    @torch.inference_mode()
    def reset(self) -> None:
        """Set the requests back to the start."""
        self.pool.reset()
        self.tokens.copy_(self._prompt)

    def _forward(self) -> torch.Tensor:
        view = self.pool.view(self.config.new_tokens, self.dtype)
        return self.model(self.tokens, view, self._angles, self)  # type: ignore[no-any-return]


def device_of(name: str | None) -> torch.device:
    """Return the device by its name; None: the GPU if there is one.

    Raises:
        UsageError: there is no such device.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no GPU")
    return torch.device(name)
