"""What a rank keeps of the tokens it has seen: the tensors of each layer's cache, and the bytes they take."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from stepscope.dtypes import item_bytes
from stepscope.errors import UsageError
from stepscope.model.kv_pool import kv_pool_layout
from stepscope.model.spec import Mla

if TYPE_CHECKING:
    from stepscope.model.parallel import Parallel
    from stepscope.model.spec import Gqa, ModelSpec, SparseIndex

_INDEX_PAGE = 64
_INDEX_BLOCK = 128
_INDEX_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """A tensor of which each layer named has one of its own."""

    name: str
    row: tuple[int, ...]
    """Shape of one token's slot."""
    dtype: str
    """As torch writes it."""
    layers: tuple[int, ...]
    """Indices of the layers that have it."""
    page: int = 1
    """Slots that lie together in one row of the tensor."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in one layer."""
        return prod(self.row) * item_bytes(self.dtype)

    def shape(self, slots: int) -> tuple[int, ...]:
        """Return the tensor's shape for a number of slots: [slots, *row], or [pages, page × row] where pages are laid.

        Slots that do not fill a page take one.
        """
        if self.page == 1:
            return slots, *self.row
        return -(-slots // self.page), self.page * prod(self.row)

    def layer_bytes(self, slots: int) -> int:
        """Return the bytes of one layer's tensor."""
        return prod(self.shape(slots)) * item_bytes(self.dtype)

    def total_bytes(self, slots: int) -> int:
        """Return the bytes of all layers' tensors."""
        return self.layer_bytes(slots) * len(self.layers)


def rank_caches(
    spec: ModelSpec, parallel: Parallel, kv_dtype: str = "BFloat16", stage: range | None = None
) -> tuple[CacheTensor, ...]:
    """Return the tensors that one rank keeps tokens in: `kv_caches`, and `index_cache` where the model has one.

    Args:
        spec: the model.
        parallel: its ranks.
        kv_dtype: type of the pool, as torch writes it.
        stage: indices of the layers on the rank's pipeline stage; None: all.

    Raises:
        UsageError: the heads of keys and values do not divide by the ranks, nor the ranks by them.
    """
    every = tuple(stage if stage is not None else range(len(spec.layers)))
    indexed = tuple(layer for layer in spec.indexed_layers if layer in every)
    index = (index_cache(spec.sparse_index, indexed),) if spec.sparse_index is not None and indexed else ()
    return (*kv_caches(spec, parallel, kv_dtype, every), *index)


def kv_caches(spec: ModelSpec, parallel: Parallel, kv_dtype: str, layers: tuple[int, ...]) -> tuple[CacheTensor, ...]:
    """Return the pools of keys and values.

    Latent attention keeps one pool [slots, 1, latent + rope] on every rank, because all heads read the same; attention
    by head keeps [slots, heads of keys, head_dim] for keys and for values. A layer with a window has as many slots as
    the others unless the engine has a pool of its own for such layers.

    Raises:
        UsageError: the heads of keys and values do not divide by the ranks, nor the ranks by them.
    """
    attention = spec.attention
    if isinstance(attention, Mla):
        return (CacheTensor("KV pool", (1, kv_pool_layout(attention).row), kv_dtype, layers),)
    row = (kv_heads(attention, parallel), attention.head_dim)
    return tuple(CacheTensor(name, row, kv_dtype, layers) for name in ("K pool", "V pool"))


def index_cache(index: SparseIndex, layers: tuple[int, ...]) -> CacheTensor:
    """Return the keys of a sparse index: FP8 with a float32 scale for each 128, 132 bytes a token of heads of 128.

    A page of 64 tokens lies after another: first the page's keys, then its scales (SGLang's `DSATokenToKVPool`).
    """
    scales = -(-index.head_dim // _INDEX_BLOCK) * _INDEX_SCALE_BYTES
    return CacheTensor("index K cache", (index.head_dim + scales,), "Byte", layers, _INDEX_PAGE)


def kv_heads(gqa: Gqa, parallel: Parallel) -> int:
    """Return the heads of keys and values on one rank; fewer heads than ranks are held several times.

    Raises:
        UsageError: neither divides the other.
    """
    heads, ranks = gqa.num_key_value_heads, parallel.attention_tp
    if heads % ranks and ranks % heads:
        raise UsageError(
            f"--tp {parallel.tp}: the model's num_key_value_heads, {heads}, neither divides by {ranks} ranks nor "
            "divides them"
        )
    return max(heads // ranks, 1)
