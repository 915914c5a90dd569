"""The floor as a whole: it adds up, grows as it must, and is never above what a healthy step of the same work took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepscope import floor
from stepscope.document import FloorCase
from stepscope.errors import UsageError
from stepscope.hardware import find_gpu
from stepscope.model import Layer, Mla, ModelSpec, Parallel, rank_weights
from stepscope.pipeline.cost import Ceilings
from stepscope.pipeline.cost.floor import Load, Rank, step_floor

TRACES = Path(__file__).parents[5] / "shared" / "traces"
SGLANG_CONFIG = TRACES / "sglang-h200" / "model-config.json"
STORY: dict[str, Any] = {"model": "glm-5", "gpu": "rtx-pro-6000", "tp": 8, "weights": "nvfp4", "kv_dtype": "fp8"}


def test_the_components_add_up_to_the_floor() -> None:
    found = floor(**STORY, measured_us=86_000)
    assert sum(part.time_us for part in found.components) == pytest.approx(found.floor_us_per_step)
    assert found.unexplained_us == pytest.approx(86_000 - found.floor_us_per_step)
    assert found.tokens_per_s == pytest.approx(1e6 / found.floor_us_per_step)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"batch": 0}, "--batch 0: must be at least 1"),
        ({"context": -1}, "--context -1: must be at least 1"),
        ({"tp": 0}, "--tp 0: must be at least 1"),
        ({"ep": -8}, "--ep -8: must be at least 1"),
        ({"measured_us": float("nan")}, "is no duration"),
        ({"measured_us": 0.0}, "is no duration"),
        ({"kv_dtype": "fp3"}, "--kv-dtype fp3: no such type"),
    ],
)
def test_python_refuses_what_the_command_line_does(told: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        floor(**{**STORY, **told})


def test_the_storys_step_could_take_under_5_ms() -> None:
    """Bytes of a rank by hand: what is read once a step at 1,792 GB/s."""
    attention = 2048 * 6144 + 8 * 256 * 2048 + 576 * 6144 + 8 * 448 * 512 + 6144 * 8 * 256
    index_key, router, shared, dense = 128 * 6144, 256 * 6144, 3 * 256 * 6144, 3 * 1536 * 6144
    layers = 78 * (attention + index_key) + 75 * (router + shared) + 3 * dense + 19360 * 6144
    experts = 75 * 8 * 3 * 256 * 6144 * 4.5 / 8
    read = layers * 2 + experts + 78 * 1024 * 576
    links = 156 * 1.75 * 12288 / 63e3  # all-reduces of a hidden state
    found = floor(**STORY)
    assert read / 1792e3 + links == pytest.approx(4813, abs=1)
    assert found.floor_us_per_step == pytest.approx(read / 1792e3 + links, rel=0.001)


def test_q4_k_is_no_faster_than_nvfp4() -> None:
    """Both take 4.5 bits a weight."""
    nvfp4, gguf = (floor(**(STORY | {"weights": name})) for name in ("nvfp4", "gguf:Q4_K"))
    assert gguf.floor_us_per_step == pytest.approx(nvfp4.floor_us_per_step, rel=1e-4)
    assert floor(**(STORY | {"weights": "bf16"})).floor_us_per_step > 1.4 * nvfp4.floor_us_per_step


def test_growth_has_every_pair_and_the_floor_itself() -> None:
    found = floor(**STORY, batch=3, context=5000)
    points = {(point.batch, point.context): point.floor_us_per_step for point in found.growth}
    assert {batch for batch, _ in points} == {1, 3, 4, 16, 64, 256}
    assert {context for _, context in points} == {1024 * 2**n for n in range(8)} | {5000}
    assert len(points) == len(found.growth) == 6 * 9
    assert points[3, 5000] == found.floor_us_per_step
    assert all(
        point.tokens_per_s == pytest.approx(point.batch / point.floor_us_per_step * 1e6) for point in found.growth
    )
    for (batch, context), us in points.items():  # more work is never faster
        assert us <= points.get((batch, 2 * context), us)
        assert us <= points.get((4 * batch, context), us)


def test_a_large_batch_is_bound_by_arithmetic_a_small_one_by_memory() -> None:
    """A weight takes 2 bytes and 2 operations a request: at 4.3 TB/s and 790 TFLOPS the ridge is at 184 requests."""
    for batch, bound in ((1, "memory"), (183, "memory"), (184, "compute")):
        parts = {part.name: part.bound for part in floor(model="deepseek-v3", gpu="h200", batch=batch).components}
        assert parts["attention projections"] == bound


@pytest.mark.parametrize(("tp", "bound"), [(8, "memory"), (1, "compute")])
def test_the_cache_is_bound_by_arithmetic_where_many_heads_share_it(tp: int, bound: str) -> None:
    """A token's 1,152 bytes at 4.3 TB/s take 268 ps; 2 × 1,088 operations by 16 heads at 790 TFLOPS 44, by 128 353."""
    parts = {part.name: part for part in floor(model="deepseek-v3", gpu="h200", tp=tp).components}
    assert parts["KV read"].bound == bound
    ps_a_token = {"memory": 1152 / 4.3, "compute": 2176 * 128 / 790}[bound]
    assert parts["KV read"].time_us == pytest.approx(61 * 1024 * ps_a_token / 1e6)


def test_what_it_rests_on_is_said() -> None:
    told = " / ".join(floor(**STORY).assumptions)
    for words in (
        "routing is random: 1 token is expected to hit 8 of the 256 experts of a layer",
        "experts nvfp4 (4.5 bits a weight); the rest bf16 (16 bits a weight)",
        "memory at 1.79 TB/s (NVIDIA RTX PRO 6000 Blackwell datasheet",
        "no longer than 2,048 tokens",
        "multi-token-prediction layers do not run",
        "latency of collectives is not known",
        "156 collectives",
    ):
        assert words in told
    assert "selects" not in " ".join(floor(**STORY, context=4096).assumptions)
    assert "collectives" not in " ".join(floor(model="glm-5", gpu="h200").assumptions)
    assert "busiest of 4 attention groups has 3 requests" in " ".join(
        floor(model="glm-5", gpu="h200", tp=4, dp=4, ep=4, batch=9).assumptions
    )


@pytest.mark.parametrize("wrong", [{"ep": 3}, {"dp": 3}, {"tp": 7}, {"measured_us": 1.0, "traces": ["t.json"]}])
def test_what_does_not_fit_together_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        floor(**(STORY | wrong))


@pytest.mark.skipif(not SGLANG_CONFIG.exists(), reason="the real traces are not beside the repository")
def test_it_is_below_the_step_of_a_real_server_and_not_absurdly() -> None:
    """SGLang without profiler, BF16 KV: 10.85 ms between tokens; 11.21 ms profiled, of which 10.6 busy."""
    found = floor(model=str(SGLANG_CONFIG), gpu="h200", context=1000)
    assert found.floor_us_per_step < 10_850
    assert found.floor_us_per_step / 10_850 == pytest.approx(0.265, abs=0.005)


def test_it_is_below_the_step_of_the_lab() -> None:
    """One rank's slice of GLM-5 with a router and one MLP of 256 in place of the experts: 9.99 ms without profiler."""
    stand_in = ModelSpec(
        architecture="Lab",
        hidden_size=6144,
        vocab_size=1,
        num_attention_heads=8,
        attention=Mla(q_lora_rank=2048, kv_lora_rank=512, qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256),
        layers=(Layer(has_experts=False),) * 78,
        intermediate_size=256,
    )
    ceilings = Ceilings.of(find_gpu("h200", None))
    assert ceilings is not None
    case = FloorCase(model="lab", gpu="h200", tp=1, ep=1, dp=1, weights="bf16", kv_dtype="fp8", batch=1, context=1024)
    rank = Rank(stand_in, Parallel(), rank_weights(stand_in, Parallel()))
    found = step_floor(case, rank, Load(1, 1024, "Float8_e4m3fn"), ceilings)
    assert found.floor_us_per_step / 9_990 == pytest.approx(0.145, abs=0.005)
