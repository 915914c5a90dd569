"""What attention reads and writes beside its weights: the KV pool, and the keys of a sparse index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.dtypes import item_bytes
from stepscope.model import Mla
from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.model import Gqa, Parallel, SparseIndex
    from stepscope.pipeline.cost.floor.rank import Load, Rank

INDEX_KEY_DTYPE = "Float8_e4m3fn"
INDEX_SCALE_BYTES = 4
"""A key of the sparse index is FP8 with one float32 scale, as DeepSeek-V3.2's own inference code keeps it."""


def kv_append(rank: Rank, load: Load) -> Work:
    """Return the new token's row of each request, written in every layer."""
    return Work(len(rank.spec.layers) * load.attended(rank.parallel) * _row_bytes(rank, load))


def kv_read(rank: Rank, load: Load) -> Iterator[Work]:
    """Yield the cache of the tokens that attention sees, read once for all heads of the rank, by width of the window.

    It sees at most the layer's window, and at most the tokens that the sparse index selects. For each token and head
    absorbed MLA multiplies latent + rope elements for the score and latent ones for the value; otherwise both have
    the head's dimension. They are multiplied in the cache's type.
    """
    spec, attention = rank.spec, rank.spec.attention
    heads = spec.num_attention_heads // rank.parallel.attention_tp
    if isinstance(attention, Mla):
        multiplied = 2 * attention.kv_lora_rank + attention.qk_rope_head_dim
    else:
        multiplied = 2 * attention.head_dim
    windows = [layer.window for layer in spec.layers]
    for window in dict.fromkeys(windows):
        tokens = min(load.context, window or load.context)
        if spec.sparse_index is not None:
            tokens = min(tokens, spec.sparse_index.topk)
        seen = windows.count(window) * load.attended(rank.parallel) * tokens
        yield Work(seen * _row_bytes(rank, load), 2 * seen * heads * multiplied, load.kv_dtype)


def selects(index: SparseIndex, load: Load) -> bool:
    """Tell whether the index has anything to choose: not where it would take all of the context."""
    return load.context > index.topk


def index_keys(rank: Rank, index: SparseIndex, load: Load) -> Iterator[Work]:
    """Yield the new index key of each request, written, and those of its whole context, read and scored.

    A score is the product of the key with the query of every head of the index, and the heads' weighted sum.
    """
    new = len(rank.spec.indexed_layers) * load.attended(rank.parallel)
    key_bytes = index.head_dim * item_bytes(INDEX_KEY_DTYPE) + INDEX_SCALE_BYTES
    yield Work(new * key_bytes)
    if selects(index, load):
        keys = new * load.context
        yield Work(keys * key_bytes, 2 * keys * index.num_heads * (index.head_dim + 1), INDEX_KEY_DTYPE)


def _row_bytes(rank: Rank, load: Load) -> int:
    """Return the bytes of a token in the KV pool of one layer on one rank.

    MLA keeps a latent and a rotary key for all heads, on every rank. Otherwise a rank keeps keys and values of its
    share of the KV heads, and of one where there are more ranks than KV heads.
    """
    attention = rank.spec.attention
    if isinstance(attention, Mla):
        elements = attention.kv_lora_rank + attention.qk_rope_head_dim
    else:
        elements = 2 * _kv_heads(attention, rank.parallel) * attention.head_dim
    return elements * item_bytes(load.kv_dtype)


def _kv_heads(attention: Gqa, parallel: Parallel) -> int:
    return max(attention.num_key_value_heads // parallel.attention_tp, 1)
