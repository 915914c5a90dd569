"""The KV pool of a layer: its row, and which recorded sizes it explains.

How many slots the pool has is chosen by the server from the free memory, so a trace is the only place to learn it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.model.spec import Mla


@dataclass(frozen=True, slots=True)
class KVPoolLayout:
    """One row of an MLA pool: a token's latent, which is both key and value, and its rotated key."""

    latent: int
    """Elements of the compressed latent (`kv_lora_rank`)."""
    rope: int
    """Elements of the rotary key that all heads share (`qk_rope_head_dim`)."""

    @property
    def row(self) -> int:
        """Elements of a slot."""
        return self.latent + self.rope

    def slots_of_shape(self, shape: Sequence[int]) -> int | None:
        """Return the slots of a pool of this shape ([slots, 1, row], paged, or flat), or None if it is none."""
        if len(shape) < 2 or shape[-1] != self.row:
            return None
        slots = prod(shape[:-1])
        return slots or None

    def slots_in_range(self, low: int, high: int) -> range:
        """Return the slots that a pool whose element count lies in [low, high] can have; often one number, or none."""
        return range(-(-low // self.row), high // self.row + 1)

    def describe(self, slots: int) -> str:
        """Return the pool's name with its size: ``KV pool, 495,552 slots × (512 latent + 64 rope)``."""
        return f"KV pool, {slots:,} slots × ({self.latent} latent + {self.rope} rope)"


PUBLISHED_MLA = KVPoolLayout(latent=512, rope=64)
"""The row of every published MLA model: DeepSeek-V2 and V3, Kimi-K2, GLM-5."""


def kv_pool_layout(mla: Mla) -> KVPoolLayout:
    """Return the pool layout of a model with latent attention."""
    return KVPoolLayout(latent=mla.kv_lora_rank, rope=mla.qk_rope_head_dim)
