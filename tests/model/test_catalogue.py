"""The models' own facts, worked out from their published configs."""

from __future__ import annotations

import pytest

from stepscope.errors import ExitCode, UsageError
from stepscope.model import (
    Deployment,
    KVPoolLayout,
    Mla,
    Parallel,
    kv_pool_layout,
    load_model,
    match_elements,
    preset_names,
    rank_weights,
)


def shapes(model: str, tp: int) -> dict[str, tuple[int, ...]]:
    return {weight.name: weight.shape for weight in rank_weights(load_model(model), Parallel(tp))}


def test_glm_5_on_one_rank_of_eight() -> None:
    """64 heads of 192 + 64 and values of 256, width 6144, 256 experts of 2048; all but the low ranks split by 8."""
    found = shapes("glm-5", 8)
    assert found["w13"] == (256, 2 * 256, 6144)
    assert found["w2"] == (256, 6144, 256)
    assert found["router"] == (256, 6144)
    assert found["q_a_proj"] == (2048, 6144)
    assert found["q_b_proj"] == (8 * 256, 2048)
    assert found["kv_a_proj"] == (576, 6144)
    assert found["fused_qkv_a_proj"] == (2624, 6144)
    assert found["kv_b_proj"] == (8 * 448, 512)
    assert found["w_kc"] == (8, 192, 512)
    assert found["w_vc"] == (8, 512, 256)
    assert found["o_proj"] == (6144, 2048)
    assert found["dense_w13"] == (3072, 6144)
    assert found["dense_w2"] == (6144, 1536)
    assert found["lm_head"] == (19360, 6144)


def test_the_storys_numbers_of_elements() -> None:
    """285.4 M elements is neither w13's 805.3 M nor w2's 402.7 M."""
    elements = {weight.name: weight.elements for weight in rank_weights(load_model("glm-5"), Parallel(8))}
    assert elements["w13"] == 805_306_368
    assert elements["w2"] == 402_653_184
    assert 495_552 * 576 == 285_437_952
    assert not match_elements(rank_weights(load_model("glm-5"), Parallel(8)), 285_437_441, 285_437_952)


def test_deepseek_v3_on_one_rank_of_eight() -> None:
    found = shapes("deepseek-v3", 8)
    assert found["w13"] == (256, 512, 7168)
    assert found["w2"] == (256, 7168, 256)
    assert found["q_b_proj"] == (16 * 192, 1536)
    assert found["o_proj"] == (7168, 2048)
    assert found["lm_head"] == (16160, 7168)


@pytest.mark.parametrize(("model", "dense", "experts"), [("glm-5", 3, 75), ("deepseek-v3", 3, 58)])
def test_layers_by_kind(model: str, dense: int, experts: int) -> None:
    layers = {weight.name: len(weight.layers) for weight in rank_weights(load_model(model), Parallel(1))}
    assert (layers["dense_w13"], layers["w13"], layers["w_kc"]) == (dense, experts, dense + experts)


def test_tensor_parallel_splits_and_loses_nothing() -> None:
    whole = {weight.name: weight.elements for weight in rank_weights(load_model("glm-5"), Parallel(1))}
    split = {weight.name: weight.elements for weight in rank_weights(load_model("glm-5"), Parallel(4))}
    everywhere = {"q_a_proj", "kv_a_proj", "fused_qkv_a_proj", "router", "q_a_norm", "kv_a_norm"}
    everywhere |= {"input_norm", "post_attention_norm", "final_norm", "router_bias"}
    everywhere |= {"index_q_proj", "index_k_proj", "index_weights_proj", "index_k_norm"}
    assert {name for name in whole if whole[name] == split[name]} == everywhere
    assert all(whole[name] == 4 * split[name] for name in whole.keys() - everywhere)


@pytest.mark.parametrize("tp", [3, 7, 128])
def test_a_group_that_does_not_divide_the_model_is_wrong_usage(tp: int) -> None:
    with pytest.raises(UsageError, match=f"--tp {tp}"):
        rank_weights(load_model("glm-5"), Parallel(tp))


@pytest.mark.parametrize(
    ("shape", "slots"),
    [
        ([495552, 1, 576], 495552),
        ([495553, 1, 576], 495553),
        ([7743, 64, 576], 7743 * 64),
        ([7743, 64, 1, 576], 7743 * 64),
        ([495552, 576], 495552),
        ([576], None),
        ([495552, 1, 512], None),
        ([0, 1, 576], None),
        ([], None),
    ],
)
def test_shapes_of_a_pool(shape: list[int], slots: int | None) -> None:
    assert KVPoolLayout(512, 64).slots_of_shape(shape) == slots


@pytest.mark.parametrize(
    ("blocks", "slots"),
    [
        (557_496, 495_552),  # 557,496 x 512 = 285,437,952 = 495,552 x 576: the last block is full
        (557_498, 495_553),  # 495,553 x 576 = 285,438,528 needs 557,497.1 blocks
        (1_125_002, 1_000_001),  # 1,000,001 x 576 / 512 = 1,125,001.1
        (557_497, None),  # from 285,437,953 to 285,438,464: 495,553 rows do not fit, 495,552 fill less
        (1, None),
        (9, 8),
    ],
)
def test_a_grid_gives_a_range_and_every_count_of_rows_in_it_is_tried(blocks: int, slots: int | None) -> None:
    """Blocks of 128 threads with 4 elements each; the last may be partly filled."""
    fitting = KVPoolLayout(512, 64).slots_in_range((blocks - 1) * 512 + 1, blocks * 512)
    assert list(fitting) == ([] if slots is None else [slots])


def test_a_range_with_several_counts_of_rows_names_them_all() -> None:
    # 1,024 elements a block: 278,748 blocks hold 495,551 rows and a bit, or 495,552
    assert list(KVPoolLayout(512, 64).slots_in_range(278_747 * 1024 + 1, 278_748 * 1024)) == [495_551, 495_552]


@pytest.mark.parametrize("model", ["glm-5", "deepseek-v3", "deepseek-v3.2", "kimi-k2"])
def test_the_row_of_every_published_mla_model(model: str) -> None:
    attention = load_model(model).attention
    assert isinstance(attention, Mla)
    layout = kv_pool_layout(attention)
    assert (layout.latent, layout.rope, layout.row) == (512, 64, 576)
    assert layout.describe(495_552) == "KV pool, 495,552 slots \u00d7 (512 latent + 64 rope)"


class TestDeployment:
    def test_without_a_model_only_the_common_row_is_known(self) -> None:
        deployment = Deployment.of(None, None, 1024)
        assert (deployment.name, deployment.spec, deployment.weights, deployment.context) == (None, None, (), 1024)
        assert deployment.kv_pool == KVPoolLayout(latent=512, rope=64)

    def test_a_model_that_keeps_keys_and_values_by_head_has_no_pool_of_latents(self) -> None:
        assert Deployment.of("llama-3.1-8b", 8, None).kv_pool is None

    def test_without_a_group_no_weight_is_known(self) -> None:
        deployment = Deployment.of("glm-5", None, None)
        assert deployment.spec is not None
        assert len(deployment.spec.layers) == 78
        assert deployment.weights == ()

    @pytest.mark.parametrize("name", ["glm-6", "", "../presets/glm-5", "glm-5.json", "GLM-5\n"])
    def test_an_unknown_model_is_wrong_usage_and_says_which_are_known(self, name: str) -> None:
        with pytest.raises(UsageError, match=r"nor a known model \(deepseek-v3, .*, qwen3-8b\)") as caught:
            Deployment.of(name, 8, None)
        assert caught.value.exit_code is ExitCode.WRONG_USAGE


def test_presets_are_the_contracts_names_and_the_models_whose_counts_are_tested() -> None:
    contract = {"glm-5", "deepseek-v3", "deepseek-v3.2", "kimi-k2"}
    counted = {"gpt-oss-120b", "llama-3.1-70b", "llama-3.1-8b", "mixtral-8x7b", "qwen3-235b-a22b", "qwen3-8b"}
    assert set(preset_names()) == contract | counted


@pytest.mark.parametrize("name", preset_names())
def test_presets_tell_all_that_is_needed(name: str) -> None:
    assert load_model(name).notes == ()
