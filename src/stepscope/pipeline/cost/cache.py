"""What attention reads and writes beside its weights: the KV pool, and the keys of a sparse index."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope.model import Mla, index_cache, kv_caches
from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.model import SparseIndex
    from stepscope.pipeline.cost.rank import Load, Rank

INDEX_KEY_DTYPE = "Float8_e4m3fn"
"""As DeepSeek-V3.2's own inference code keeps and multiplies the keys of the sparse index."""


class OfLayers(NamedTuple):
    """The same work in each of several layers."""

    layers: int
    work: Work
    """Of one layer."""


def kv_append(rank: Rank, load: Load) -> Work:
    """Return the new token's row of each request, written in every layer."""
    return Work(len(rank.spec.layers) * load.attended(rank.parallel) * row_bytes(rank, load.kv_dtype))


def kv_read(rank: Rank, load: Load) -> Iterator[OfLayers]:
    """Yield the cache of the tokens that attention sees, read once for all heads of the rank, by width of the window.

    It sees at most the layer's window, and at most the tokens that the sparse index selects. For each token and head
    absorbed MLA multiplies latent + rope elements for the score and latent ones for the value; otherwise both have
    the head's dimension. They are multiplied in the cache's type.
    """
    attention = rank.spec.attention
    if isinstance(attention, Mla):
        multiplied = 2 * attention.kv_lora_rank + attention.qk_rope_head_dim
    else:
        multiplied = 2 * attention.head_dim
    for window, layers in windows(rank).items():
        seen = load.attended(rank.parallel) * tokens_seen(rank, window, load.context)
        flops = 2 * seen * heads(rank) * multiplied
        yield OfLayers(layers, Work(seen * row_bytes(rank, load.kv_dtype), flops, load.kv_dtype))


def windows(rank: Rank) -> dict[int | None, int]:
    """Return how many layers have each width of window."""
    widths = [layer.window for layer in rank.spec.layers]
    return {width: widths.count(width) for width in widths}


def tokens_seen(rank: Rank, window: int | None, context: int) -> int:
    """Return how many of the tokens before it, itself included, a token attends to in layers of a window."""
    index = rank.spec.sparse_index
    return min(context, window or context, index.topk if index is not None else context)


def heads(rank: Rank) -> int:
    """Return the query heads on one rank."""
    return rank.spec.num_attention_heads // rank.parallel.attention_tp


def selects(index: SparseIndex, load: Load) -> bool:
    """Tell whether the index has anything to choose: not where it would take all of the context."""
    return load.context > index.topk


def index_append(rank: Rank, index: SparseIndex, load: Load) -> Work:
    """Return the new index key of each request, written in each layer that has an index."""
    return Work(len(rank.spec.indexed_layers) * load.attended(rank.parallel) * _key_bytes(index))


def index_scores(rank: Rank, index: SparseIndex, load: Load) -> OfLayers:
    """Return the index keys of the whole context, read and scored.

    A score is the product of the key with the query of every head of the index, and the heads' weighted sum.
    """
    keys = load.attended(rank.parallel) * load.context
    flops = 2 * keys * index.num_heads * (index.head_dim + 1)
    return OfLayers(len(rank.spec.indexed_layers), Work(keys * _key_bytes(index), flops, INDEX_KEY_DTYPE))


def row_bytes(rank: Rank, kv_dtype: str) -> int:
    """Return the bytes of a token in the KV pools of one layer on one rank."""
    return sum(pool.bytes_per_token for pool in kv_caches(rank.spec, rank.parallel, kv_dtype, layers=()))


def _key_bytes(index: SparseIndex) -> int:
    return index_cache(index, layers=()).bytes_per_token
