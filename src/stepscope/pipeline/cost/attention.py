"""Attention's work by the model, where no op's shapes tell it.

Libraries launch past torch's dispatcher, and the recorded shape of a paged cache is the whole pool's. Formulas: queries
and results once, and the cache as in `cache.py`. A prefill multiplies a query with every token up to its own: of n
tokens n(n + 1)/2 pairs (T. Dao et al., "FlashAttention", NeurIPS 2022, counts half of n² when causal).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stepscope.kernel_name import LOOKED_AT
from stepscope.model import Mla
from stepscope.pipeline.cost.cache import OfLayers, heads, index_scores, kv_read, row_bytes, tokens_seen, windows
from stepscope.pipeline.cost.rank import ACTIVATION_BYTES
from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.pipeline.cost.rank import Load, Rank

_SCORES_INDEX = re.compile(r"mqa_logits", re.IGNORECASE)
_OF_INDEX = re.compile(r"mqa_logits|top_?k|indexer", re.IGNORECASE)
_READS_FP8 = re.compile(r"e4m3|float8|fp8", re.IGNORECASE)
_READS_16_BITS = re.compile(r"bf16|bfloat|half", re.IGNORECASE)


def is_of_index(kernel: str) -> bool:
    """Tell whether a kernel works for the sparse index, which chooses what attention reads."""
    return bool(_OF_INDEX.search(kernel[:LOOKED_AT]))


def scores_index(kernel: str) -> bool:
    """Tell whether a kernel scores the index's keys."""
    return bool(_SCORES_INDEX.search(kernel[:LOOKED_AT]))


def cache_dtype(kernel: str, told: str | None) -> str:
    """Return the type of the cache that an attention kernel reads: as its name says, else as told, else BF16.

    A server may keep FP8 and hand a BF16 copy to a kernel that reads no other.
    """
    name = kernel[:LOOKED_AT]
    if _READS_FP8.search(name):
        return "Float8_e4m3fn"
    if _READS_16_BITS.search(name) or told is None:
        return "BFloat16"
    return told


def decode(rank: Rank, load: Load) -> Iterator[OfLayers]:
    """Yield the work of one new token a request, by width of the window."""
    io = Work(load.attended(rank.parallel) * _token_bytes(rank, absorbed=True))
    for layers, read in kv_read(rank, load):
        yield OfLayers(layers, read + io)


def prefill(rank: Rank, requests: int, tokens: int) -> Iterator[OfLayers]:
    """Yield the work of prompts of `tokens` new tokens together, by width of the window.

    As they are split equally, and nothing of them is in the cache yet, it is the least that so many can take. MLA
    multiplies keys and values by head, not the latent.

    Args:
        rank: the model on the rank.
        requests: prompts that the rank attends to.
        tokens: of all of them.
    """
    attention = rank.spec.attention
    if isinstance(attention, Mla):
        multiplied = attention.qk_nope_head_dim + attention.qk_rope_head_dim + attention.v_head_dim
        keys = heads(rank) * multiplied * ACTIVATION_BYTES
    else:
        multiplied = 2 * attention.head_dim
        keys = row_bytes(rank, "BFloat16")
    each = tokens // requests
    for window, layers in windows(rank).items():
        seen = tokens_seen(rank, window, each)
        pairs = requests * (seen * (seen + 1) // 2 + (each - seen) * seen)
        size = requests * each * (_token_bytes(rank, absorbed=False) + keys)
        yield OfLayers(layers, Work(size, 2 * pairs * heads(rank) * multiplied))


def index_decode(rank: Rank, load: Load) -> Iterator[OfLayers]:
    """Yield the scoring of the sparse index's keys, which is done even where all of them are then chosen."""
    if rank.spec.sparse_index is not None:
        yield index_scores(rank, rank.spec.sparse_index, load)


def _token_bytes(rank: Rank, *, absorbed: bool) -> int:
    """Return the bytes of a token's queries and results in one layer; those of absorbed MLA are in the latent space."""
    attention = rank.spec.attention
    if not isinstance(attention, Mla):
        width = 2 * attention.head_dim
    elif absorbed:
        width = 2 * attention.kv_lora_rank + attention.qk_rope_head_dim
    else:
        width = attention.qk_nope_head_dim + attention.qk_rope_head_dim + attention.v_head_dim
    return heads(rank) * width * ACTIVATION_BYTES
