"""A model that keeps keys and values by head has no pool of latents, whatever is as wide as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.answers import finding, rules
from tests.decode_steps import Work, graphed
from tests.examples.kv_pool_cast import whole_pool_cast_in_a_graph, whole_pool_cast_in_every_layer
from tests.kernel_names import ATTENTION, GEMM, direct_copy

from stepscope import diagnose

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


def test_without_a_model_a_cast_of_a_pools_size_is_asked_about(tmp_path: Path) -> None:
    # 147,456 blocks of 512 elements are 131,072 rows of 576; of a weight as large nothing tells them
    cast = Work(direct_copy("c10::BFloat16"), 225.79, grid=(147_456, 1, 1))
    path = graphed([[Work(GEMM, 100.0), cast, Work(ATTENTION, 200.0)] * 61] * 3).save(tmp_path / "t.json")
    found = diagnose([path])
    assert rules(found) == []
    assert [row.missing for row in found.could_not_check if row.rule == "kv-pool-cast"] == [
        "whether a cast to BFloat16 of 75.5 M elements that runs 61 times a step, 42.9% of it, is of the pool"
    ]
    assert rules(diagnose([path], model="deepseek-v3", tp=8)) == ["kv-pool-cast"]
