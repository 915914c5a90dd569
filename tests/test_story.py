"""The arithmetic of the case that stepscope was built for: a server that cast its KV pool 78 times a step.

An RTX PRO 6000 at TP-8, GLM-5, 30 profiled steps. Every expected number is the story's own.
"""

from __future__ import annotations

import pytest

from stepscope.hardware import find_gpu
from stepscope.model import Deployment, match_elements, match_shape
from stepscope.pipeline.cost import Transfer

SLOTS = 495_552
CASTS = 2340
STEPS = 30
US_A_CAST = 828
SUMMED_KERNEL_TIME_MS = 93.2
TOKENS_PER_S = 10.5

GLM_5 = Deployment.of("glm-5", 8, None)
assert GLM_5.kv_pool is not None
POOL = GLM_5.kv_pool
CAST = Transfer(SLOTS * POOL.row, "Float8_e4m3fn", "BFloat16")


def weight_elements(name: str) -> int:
    (weight,) = (weight for weight in GLM_5.weights if weight.name == name)
    return weight.elements


def test_the_pool_has_a_row_of_576_and_285_million_elements() -> None:
    assert POOL.row == 576
    assert CAST.elements == 285_437_952
    assert POOL.describe(SLOTS) == "KV pool, 495,552 slots × (512 latent + 64 rope)"


def test_every_layer_casts_its_pool_once_a_step() -> None:
    assert GLM_5.spec is not None
    assert CASTS / STEPS == len(GLM_5.spec.layers) == 78


def test_the_casts_move_66_8_gb_a_step() -> None:
    assert CAST.bytes == 856_313_856
    assert CAST.bytes * 78 == pytest.approx(66.8e9, rel=0.0005)


def test_the_casts_reach_57_7_percent_of_the_cards_bandwidth() -> None:
    gpu = find_gpu("rtx-pro-6000", None)
    assert gpu is not None
    assert gpu.memory_gb_per_s is not None
    assert gpu.memory_gb_per_s.value == 1792
    floor = CAST.floor_us(gpu)
    assert floor is not None
    assert floor * 78 / 1e3 == pytest.approx(37.3, abs=0.05)
    rate = CAST.achieved_gb_per_s(US_A_CAST)
    assert rate is not None
    assert rate / gpu.memory_gb_per_s.value == pytest.approx(0.577, abs=0.0005)


def test_the_casts_are_69_3_percent_of_the_summed_kernel_time_and_67_8_of_the_wall_time() -> None:
    casts_ms = US_A_CAST * CASTS / STEPS / 1e3
    wall_ms = 1e3 / TOKENS_PER_S
    assert casts_ms == pytest.approx(64.6, abs=0.05)
    assert wall_ms == pytest.approx(95.2, abs=0.05)
    assert casts_ms / SUMMED_KERNEL_TIME_MS == pytest.approx(0.693, abs=0.0005)
    assert casts_ms / wall_ms == pytest.approx(0.678, abs=0.0005)


def test_what_is_cast_is_neither_expert_weight() -> None:
    assert weight_elements("w13") == 805_306_368  # 256 × 512 × 6144
    assert weight_elements("w2") == 402_653_184  # 256 × 6144 × 256
    assert match_elements(GLM_5.weights, CAST.elements - 511, CAST.elements) == []
    assert match_shape(GLM_5.weights, [SLOTS, 1, 576]) == []


def test_the_launch_of_the_cast_has_room_for_no_other_pool() -> None:
    # 557,496 blocks × 128 threads × 4 elements
    assert list(POOL.slots_in_range(557_495 * 512 + 1, 557_496 * 512)) == [SLOTS]
