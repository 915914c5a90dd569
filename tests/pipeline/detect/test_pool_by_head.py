"""A model that keeps keys and values by head has no pool of latents, whatever is as wide as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.answers import finding, rules
from tests.decode_steps import Work, graphed
from tests.examples.kv_pool_cast import whole_pool_cast_in_a_graph, whole_pool_cast_in_every_layer
from tests.kernel_names import ATTENTION, GATHER, GEMM, direct_copy

from stepscope import diagnose
from stepscope.document import Confidence

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_as_wide_as_a_latent_is_no_pool_of_a_llama(tmp_path: Path) -> None:
    path = whole_pool_cast_in_every_layer().save(tmp_path / "t.json")
    assert finding(diagnose([path], context=1024), "kv-pool-cast")
    found = diagnose([path], model="llama-3.1-8b", tp=1, context=1024)
    assert "kv-pool-cast" not in rules(found)
    assert [row.tensor for row in found.kernels if "KV pool" in (row.tensor or "")] == []
    cast = finding(found, "redundant-cast")  # a tensor of fixed size that is cast in every layer, whatever it is
    assert cast.evidence.input_shape == [65_536, 1, 576]


def test_a_cast_without_a_shape_is_asked_about(tmp_path: Path) -> None:
    path = whole_pool_cast_in_a_graph().save(tmp_path / "t.json")
    found = diagnose([path], model="llama-3.1-8b", tp=1, context=1024)
    assert "kv-pool-cast" not in rules(found)
    assert [row.missing for row in found.could_not_check if row.rule == "kv-pool-cast"] == [
        "whether a cast that runs 78 times a step is of the cache, which this model keeps by head"
    ]


CAST = Work(direct_copy("c10::BFloat16"), 225.79, grid=(147_456, 1, 1))
"""147,456 blocks of 512 elements are 131,072 rows of 576; a weight may be as large."""


@pytest.mark.parametrize("before", [GEMM, GATHER], ids=["weight", "gathered"])
def test_without_a_model_a_cast_of_a_pools_size_is_asked_about(before: str, tmp_path: Path) -> None:
    kernels = [Work(before, 100.0), CAST, Work(GEMM if before == GEMM else ATTENTION, 200.0)]
    path = graphed([kernels * 61] * 3).save(tmp_path / "t.json")
    found = diagnose([path])
    assert rules(found) == []
    assert [row.missing for row in found.could_not_check if row.rule == "kv-pool-cast"] == [
        "whether a cast to BFloat16 of 75.5 M elements that runs 61 times a step, 42.9% of it, is of the pool"
    ]
    assert rules(diagnose([path], model="deepseek-v3", tp=8)) == ["kv-pool-cast"]


@pytest.mark.parametrize(("batch", "fires"), [(1, True), (2000, False)])
def test_without_a_model_right_before_attention_it_is_the_pools(batch: int, *, fires: bool, tmp_path: Path) -> None:
    # 2,000 tokens have 147 M elements in their queries; one has 73,728
    layer = [Work(GEMM, 100.0), CAST, Work(ATTENTION, 200.0)]
    path = graphed([layer * 61] * 3, annotation=f"step[DECODE bs={batch}]").save(tmp_path / "t.json")
    diagnosis = diagnose([path])
    assert ("kv-pool-cast" in rules(diagnosis)) == fires
    if fires:
        found = finding(diagnosis, "kv-pool-cast")
        assert found.confidence is Confidence.LOW
        assert found.evidence.input_shape == [131_072, 1, 576]
        assert any("right before attention" in note for note in found.notes)


@pytest.mark.parametrize(("kind", "fires"), [(0, False), (1, True)])
def test_without_a_model_vllms_writes_tell_an_fp8_pool(kind: int, *, fires: bool, tmp_path: Path) -> None:
    write = f"void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, unsigned char, (vllm::Fp8KVCacheDataType){kind}>"
    layer = [Work(write, 3.0), CAST, Work(GEMM, 300.0)]
    diagnosis = diagnose([graphed([layer * 61] * 3).save(tmp_path / "t.json")])
    assert ("kv-pool-cast" in rules(diagnosis)) == fires
