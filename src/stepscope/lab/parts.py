"""The places where a slowdown can change the engine, each a plain function with a healthy default."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from stepscope.lab import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.lab.engine import Engine

    Linear = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an engine is put together from."""

    read_pool: Callable[[torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor]
    """(pool of a layer, slots, type) → the rows at the slots in that type, [*slots.shape, row]."""
    rms_norm: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    add_rms_norm: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    rotate_and_append: Callable[..., None]
    silu_mul: Callable[[torch.Tensor], torch.Tensor]
    route: Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
    linear: Callable[[torch.Tensor], Linear]
    """Attention's weight, [out, in] → what multiplies by it."""
    per_head: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
    """(x [rows, heads, k], weights [heads, k, n], out [rows, heads, n]): multiply each head by its own weight."""
    new: Callable[..., torch.Tensor]
    """A buffer of a shape, to be filled."""
    logits: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """(hidden [requests, new tokens, width], LM head) → logits of each request's last token."""
    sample: Callable[[torch.Tensor], torch.Tensor]
    """Logits → the next token of each request."""
    before_step: Callable[[Engine], None]
    """What the host does between two steps."""
    in_layer: Callable[[Engine], None]
    """What the host does at the start of each layer."""
    graph: bool
    """Whether the step may be a CUDA graph."""
    bucket: int | None
    """Requests that the step is padded to; None: as many as there are."""


def healthy(device: torch.device, read_pool: Callable[..., torch.Tensor], *, graph: bool) -> Parts:
    """Return the parts of an engine in which nothing is slow on purpose."""
    small: Any = import_module("stepscope.lab.fused") if device.type == "cuda" else plain  # Triton needs a GPU
    return Parts(
        read_pool=read_pool,
        rms_norm=small.rms_norm,
        add_rms_norm=small.add_rms_norm,
        rotate_and_append=small.rotate_and_append,
        silu_mul=small.silu_mul,
        route=small.route,
        linear=multiply_by,
        per_head=per_head,
        new=torch.empty,
        logits=last_logits,
        sample=greedy,
        before_step=nothing,
        in_layer=nothing,
        graph=graph,
        bucket=None,
    )


def multiply_by(weight: torch.Tensor) -> Linear:
    """Return the multiplication by a weight as it is stored."""
    return lambda x: x @ weight.t()


def per_head(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """Multiply in place: cuBLAS reads and writes rows that lie apart."""
    torch.bmm(x.transpose(0, 1), weight, out=out.transpose(0, 1))


def last_logits(hidden: torch.Tensor, lm_head: torch.Tensor) -> torch.Tensor:
    """Multiply only what is sampled from."""
    return hidden[:, -1] @ lm_head.t()


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """Return the likeliest token."""
    return logits.argmax(-1)


def nothing(_: Engine) -> None:
    """Do nothing."""
