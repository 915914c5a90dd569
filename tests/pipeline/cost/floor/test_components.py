"""Bytes and operations of every component, against small models worked out by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.small_models import GROUPED, LATENT

from stepscope.model import ModelSpec, Parallel, load_model, rank_weights, weight_formats
from stepscope.pipeline.cost.floor.collectives import exchanges
from stepscope.pipeline.cost.floor.components import parts
from stepscope.pipeline.cost.rank import Load, Rank


def rank_of(spec: ModelSpec, weights: str = "bf16", **parallel: int) -> Rank:
    split = Parallel(**parallel)
    return Rank(spec, split, rank_weights(spec, split, weight_formats(spec, weights)))


def counted(rank: Rank, batch: int, context: int, kv_dtype: str = "BFloat16") -> dict[str, Any]:
    """Return bytes and operations by component."""
    return {
        part.name: (sum(work.bytes for work in part.works), sum(work.flops for work in part.works))
        for part in parts(rank, Load(batch, context, kv_dtype))
    }


def test_grouped_attention_and_dense_layers() -> None:
    found = counted(rank_of(GROUPED), batch=3, context=10)
    assert found == {
        "embedding": (2 * 3 * 8 * 2, 0),
        "norms": (5 * (8 * 2 + 2 * 3 * 8 * 2), 5 * 5 * 3 * 8),  # two a layer and one: weight, stream read and written
        "attention projections": (2 * (128 + 64) * 2, 2 * 3 * (128 + 64) * 2),  # qkv (4 + 2·2)·2 × 8, o 8 × 8
        "KV append": (2 * 3 * 16, 0),  # keys and values of 2 heads of 2 elements of 2 bytes
        "KV read": (3 * (10 + 5) * 16, 2 * 3 * (10 + 5) * 4 * (2 + 2)),  # the second layer sees 5 of the 10
        "dense MLP": (2 * (256 + 128) * 2, 2 * 3 * (256 + 128) * 2),  # w13 32 × 8, w2 8 × 16
        "LM head": (32 * 8 * 2 + 3 * 32 * 2, 2 * 3 * 32 * 8),
        "sampling": (3 * 32 * 2, 3 * 32),
    }


def test_latent_attention_experts_and_an_index_that_selects() -> None:
    found = counted(rank_of(LATENT), batch=2, context=20, kv_dtype="Float8_e4m3fn")
    projections = 4 * 8 + 10 * 4 + 8 * 8 + 14 * 6 + 8 * 8  # q_a, q_b, kv_a, kv_b, o: 284
    index = 8 * 4 + 4 * 8 + 2 * 8  # queries, key, weights: 80
    assert found == {
        "embedding": (2 * 2 * 8 * 2, 0),
        "norms": (7 * (16 + 64) + 3 * 2 * (4 + 6 + 8), 5 * 2 * (7 * 8 + 3 * (4 + 6 + 8))),
        "attention projections": (3 * projections * 2, 2 * 2 * 3 * projections),
        "sparse index": (
            3 * index * 2
            + 3 * 2 * 8
            + 3 * 2 * 20 * 8,  # weights, new keys, all keys: 4 elements and a scale of 4 bytes
            2 * 2 * 3 * index + 3 * 2 * 20 * 2 * 2 * (4 + 1),
        ),
        "KV append": (3 * 2 * 8, 0),
        "KV read": (
            3 * 2 * 8 * 8,
            3 * 2 * 8 * 2 * 2 * (8 + 6),
        ),  # 8 of 20 tokens; 8 elements for a score, 6 for a value
        "dense MLP": (1 * (24 * 8 + 8 * 12) * 2, 2 * 2 * (24 * 8 + 8 * 12)),
        "router": (2 * 8 * 8 * 2, 2 * 2 * 2 * 8 * 8),
        "routing": (2 * 2 * 2 * 8, 0),
        "experts": (pytest.approx(2 * 3.5 * 96 * 2), pytest.approx(2 * 2 * 2 * 2 * 96)),  # 8(1 − (6/8)²) = 3.5 are hit
        "shared expert": (2 * 96 * 2, 2 * 2 * 2 * 96),
        "LM head": (16 * 8 * 2 + 2 * 16 * 2, 2 * 2 * 16 * 8),
        "sampling": (2 * 16 * 2, 2 * 16),
    }


def test_an_index_that_would_select_everything_only_keeps_its_new_keys() -> None:
    found = counted(rank_of(LATENT), batch=2, context=8, kv_dtype="Float8_e4m3fn")
    assert found["sparse index"] == (3 * 32 * 2 + 3 * 2 * 8, 2 * 2 * 3 * 32)
    assert found["KV read"][0] == 3 * 2 * 8 * 8
    assert counted(rank_of(LATENT), 2, 9, "Float8_e4m3fn")["sparse index"][0] > found["sparse index"][0]


@pytest.mark.parametrize(("tp", "row"), [(1, 16), (2, 8), (4, 8)])
def test_more_ranks_than_kv_heads_each_keep_one(tp: int, row: int) -> None:
    found = counted(rank_of(GROUPED, tp=tp), batch=1, context=5)
    assert found["KV read"][0] == 2 * 5 * row
    assert found["KV append"][0] == 2 * row


def test_ranks_do_not_split_a_latent_cache() -> None:
    one, two = (counted(rank_of(LATENT, tp=tp), batch=1, context=5)["KV read"] for tp in (1, 2))
    assert one[0] == two[0] == 3 * 5 * 8 * 2
    assert one[1] == 2 * two[1]  # but the heads


def test_a_rank_reads_and_multiplies_its_share_of_the_experts() -> None:
    one, two = (counted(rank_of(LATENT, tp=2, ep=ep), batch=2, context=5)["experts"] for ep in (1, 2))
    assert one == two == pytest.approx((2 * 3.5 * 96 * 2 / 2, 2 * 2 * 2 * 2 * 96 / 2))


def test_attention_groups_share_out_the_requests_and_the_busiest_counts() -> None:
    found = counted(rank_of(LATENT, tp=2, attention_dp=2), batch=5, context=6)
    assert found["KV read"][0] == 3 * 3 * 6 * 8 * 2  # 3 of the 5 requests
    assert found["attention projections"] == (3 * 284 * 2, 2 * 3 * 3 * 284)  # unsplit
    assert found["dense MLP"][1] == 2 * 5 * 288 / 2  # of all requests, split


def test_what_groups_hold_whole_is_multiplied_with_their_own_requests() -> None:
    """As servers with attention groups may have it: dense MLP, shared expert and LM head unsplit, 3 of 5 requests."""
    found = counted(rank_of(LATENT, tp=2, attention_dp=2, dense_dp=2, shared_dp=2, lm_head_dp=2), batch=5, context=6)
    assert found["dense MLP"] == (288 * 2, 2 * 3 * 288)
    assert found["shared expert"] == (2 * 96 * 2, 2 * 3 * 2 * 96)
    assert found["LM head"] == (16 * 8 * 2 + 3 * 16 * 2, 2 * 3 * 16 * 8)
    assert found["sampling"] == (3 * 16 * 2, 3 * 16)


def test_norms_of_what_a_branch_adds_and_biases_do_not_read_the_stream_again() -> None:
    """A layer reads and writes it once for attention and once for the MLP: 2 layers, the last norm, 3 tokens of 8."""
    stream = 5 * 2 * 3 * 8 * 2
    four = msgspec.structs.replace(GROUPED, layer_norms=("in", "after_attention", "before_mlp", "after_mlp"))
    assert counted(rank_of(four), 3, 10)["norms"][0] == stream + (2 * 4 + 1) * 8 * 2
    biased = msgspec.structs.replace(GROUPED, norm_bias=True)
    assert counted(rank_of(biased), 3, 10)["norms"][0] == stream + 2 * (2 * 2 + 1) * 8 * 2


def test_the_bias_of_a_head_writes_no_logits_of_its_own() -> None:
    biased = msgspec.structs.replace(GROUPED, lm_head_bias=True)
    assert counted(rank_of(biased), 3, 10)["LM head"] == (32 * 8 * 2 + 32 * 2 + 3 * 32 * 2, 2 * 3 * 32 * 8 + 3 * 32)


def test_a_tied_head_is_read_as_well() -> None:
    tied = msgspec.structs.replace(LATENT, tie_word_embeddings=True)
    assert counted(rank_of(tied), 2, 5)["LM head"] == counted(rank_of(LATENT), 2, 5)["LM head"]


def test_the_all_reduces_of_a_tensor_parallel_group() -> None:
    (attention, mlp) = exchanges(rank_of(GROUPED, tp=4), Load(3, 10, "BFloat16"))
    assert attention == mlp == (2, 2 * 3 / 4 * (3 * 8 * 2))  # two layers, 2(n − 1)/n of three hidden states


def test_one_rank_sends_nothing() -> None:
    assert not list(exchanges(rank_of(GROUPED), Load(3, 10, "BFloat16")))


def test_attention_groups_gather_for_dense_layers_and_send_tokens_to_experts() -> None:
    found: list[Any] = list(exchanges(rank_of(LATENT, tp=4, attention_dp=4, ep=4), Load(8, 10, "BFloat16")))
    hit = 4 * (1 - 15 / 28)  # groups of 2 experts that 2 of 8 lie in: C(6, 2) = 15 of C(8, 2) = 28 miss a group
    assert found == [(2, 3 / 4 * (8 * 16)), (4, pytest.approx(2 * 16 * hit * 3 / 4))]


def test_groups_that_hold_dense_layers_for_themselves_gather_nothing_for_them() -> None:
    load = Load(8, 10, "BFloat16")
    whole: list[Any] = list(exchanges(rank_of(LATENT, tp=4, attention_dp=4, dense_dp=4, ep=4), load))
    assert [exchange.times for exchange in whole] == [4]  # two expert layers, there and back
    halves = list(exchanges(rank_of(LATENT, tp=4, attention_dp=2, dense_dp=2), load))
    assert halves[1] == (1, 2 * 1 / 2 * (4 * 16))  # an all-reduce of 4 requests between 2 ranks


def test_without_shared_out_experts_attention_groups_gather_every_token() -> None:
    found = list(exchanges(rank_of(LATENT, tp=4, attention_dp=2), Load(8, 10, "BFloat16")))
    assert found == [(3, 2 * 1 / 2 * (4 * 16)), (2, 96), (4, 96)]  # all-reduce of 4 requests between 2 ranks, gathers


def test_the_experts_of_glm_5_that_the_story_hits() -> None:
    """8 of 256 experts in 75 layers, a share of 256 of their 2,048 inner columns, 4.5 bits a weight."""
    found = counted(rank_of(load_model("glm-5"), "nvfp4", tp=8), batch=1, context=1024, kv_dtype="Float8_e4m3fn")
    weights = 75 * 8 * 3 * 256 * 6144
    assert found["experts"][0] == pytest.approx(weights * 4.5 / 8, rel=1e-5)  # and a few scales of whole experts
    assert found["experts"][1] == pytest.approx(2 * weights)
    assert found["KV read"][0] == 78 * 1024 * 576
