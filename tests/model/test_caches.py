"""The caches on one rank, in bytes worked out by hand."""

from __future__ import annotations

import pytest
from tests.model import published_configs

from stepscope.errors import UsageError
from stepscope.model import CacheTensor, Parallel, load_model, rank_caches, read_config


def caches(model: str, parallel: Parallel, kv_dtype: str = "BFloat16") -> dict[str, CacheTensor]:
    return {cache.name: cache for cache in rank_caches(load_model(model), parallel, kv_dtype)}


def test_latent_attention_keeps_one_row_a_token_on_every_rank() -> None:
    """GLM-5's pool of the story: 495,552 slots of 576 in FP8, one for each of 78 layers."""
    (pool, _) = caches("glm-5", Parallel(8), "Float8_e4m3fn").values()
    assert (pool.shape(495_552), pool.bytes_per_token) == ((495_552, 1, 576), 576)
    assert pool.layer_bytes(495_552) == 285_437_952
    assert pool.total_bytes(495_552) == 78 * 285_437_952
    assert caches("glm-5", Parallel(1))["KV pool"].bytes_per_token == 1152


def test_a_sparse_index_keeps_132_bytes_a_token_in_pages_of_64() -> None:
    """128 keys in FP8 and one float32 scale."""
    index = caches("deepseek-v3.2", Parallel(8))["index K cache"]
    assert (index.bytes_per_token, index.dtype, index.layers) == (132, "Byte", tuple(range(61)))
    assert index.shape(6400) == (100, 64 * 132)
    assert index.shape(6401) == (101, 64 * 132)
    assert index.total_bytes(6400) == 61 * 6400 * 132


def test_without_an_index_there_is_none() -> None:
    assert list(caches("kimi-k2", Parallel(8))) == ["KV pool"]


def test_layers_that_share_an_index_share_its_cache() -> None:
    spec = read_config({"model_type": "glm_moe_dsa", "num_hidden_layers": 7, "index_topk_freq": 4})
    pool, index = rank_caches(spec, Parallel())
    assert (pool.layers, index.layers) == (tuple(range(7)), (0, 1, 5))


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_keys_and_values_by_head(tp: int, heads: int) -> None:
    """Llama-3.1-70B: 8 heads of 128; 16 ranks hold each head twice."""
    found = caches("llama-3.1-70b", Parallel(tp))
    assert list(found) == ["K pool", "V pool"]
    for pool in found.values():
        assert (pool.shape(1000), pool.bytes_per_token) == ((1000, heads, 128), heads * 128 * 2)
        assert pool.total_bytes(1000) == 80 * 1000 * heads * 128 * 2


def test_ranks_with_requests_of_their_own_keep_all_heads() -> None:
    assert caches("qwen3-235b-a22b", Parallel(4, attention_dp=4))["K pool"].row == (4, 128)


def test_a_stage_keeps_its_layers() -> None:
    found = rank_caches(load_model("glm-5"), Parallel(8), stage=range(70, 78))
    assert [cache.layers for cache in found] == [tuple(range(70, 78))] * 2


def test_heads_that_do_not_divide_are_wrong_usage() -> None:
    spec = read_config({**published_configs.MISTRAL_7B, "num_key_value_heads": 4})
    with pytest.raises(UsageError, match="num_key_value_heads, 4, neither divides by 6 ranks"):
        rank_caches(spec, Parallel(6))
